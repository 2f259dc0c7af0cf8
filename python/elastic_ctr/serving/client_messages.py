"""The messages of the Python client: requests as bytes and answers from bytes, without a connection."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, Union

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.slots import SlotList

Keys: TypeAlias = npt.NDArray[np.uint64]
Lengths: TypeAlias = npt.NDArray[np.integer[Any]]
Cell: TypeAlias = Union[str, int, float, bool, "np.generic", "npt.NDArray[np.generic]", Sequence["Cell"], None]
"""A value of a row; None is a missing one."""
Row: TypeAlias = Mapping[str, Cell]
Instance: TypeAlias = Mapping[str, Iterable[int]]
JSON_LENGTH = "Inference-Header-Content-Length"


class Prediction(NamedTuple):
    """Probabilities f32 [rows] of a click, and the model version that computed them.

    `places`: i64 [rows], the candidates that these are, best first, if the request wanted the best ones alone.
    """

    probabilities: npt.NDArray[np.float32]
    version: int
    places: npt.NDArray[np.int64] | None = None


class ModelInputs(NamedTuple):
    """The inputs of a model: feasigns of `slots` or, if that is None, `columns` with their datatypes."""

    version: int
    slots: SlotList | None
    columns: dict[str, str]

    def feasigns_refused(self) -> str:
        names = ", ".join(list(self.columns)[:10]) + (" …" if len(self.columns) > 10 else "")
        return f"the model takes rows of columns ({names}), not feasigns; ask it with predict_rows"

    def rows_refused(self) -> str:
        return "the model takes feasigns of its slots, not rows of columns; ask it with encode and predict"


def tensor_request(
    feasigns: Keys, lengths: Lengths, slots: SlotList, *, first_is_shared: bool = False
) -> tuple[bytes, int]:
    """Return the body of a prediction, and the length of the JSON in it. Raises ValueError if the arrays do not fit together."""
    if feasigns.ndim != 1 or feasigns.dtype != np.uint64 or lengths.shape[1:] != (len(slots),):
        raise ValueError(
            f"feasigns are {feasigns.dtype}{list(feasigns.shape)} and lengths {list(lengths.shape)}; uint64[n] and whole "
            f"numbers [rows, {len(slots)}] are needed"
        )
    low, high = (int(lengths.min()), int(lengths.max())) if lengths.size else (0, 0)
    if low < 0 or high > 0xFFFFFFFF or int(lengths.sum()) != feasigns.size:
        raise ValueError(f"the lengths do not add up to the {feasigns.size} feasigns, or one of them is negative")
    datatype, dtype = ("UINT32", "<u4") if high > 0xFFFF else ("UINT16", "<u2")
    tensors = (
        ("feasigns", "UINT64", feasigns.astype("<u8", copy=False)),
        ("lengths", datatype, lengths.astype(dtype, copy=False)),
    )
    document = {
        "inputs": [
            {"name": name, "shape": list(values.shape), "datatype": kind, "parameters": {"binary_data_size": values.nbytes}}
            for name, kind, values in tensors
        ],
        "outputs": [{"name": "probability", "parameters": {"binary_data": True}}],
        "parameters": {"slot_list_check": slots.check(), **({"first_is_shared": True} if first_is_shared else {})},
    }  # fmt: skip
    head = json.dumps(document, separators=(",", ":")).encode()
    return b"".join((head, *(values.tobytes() for _, _, values in tensors))), len(head)


def prediction_of(body: bytes, json_length: int) -> Prediction:
    """Read the answer to such a body. Raises ValueError, KeyError, TypeError for any other body."""
    answer = json.loads(body[:json_length])
    [output] = answer["outputs"]
    [rows] = output["shape"]
    probabilities = np.frombuffer(body, "<f4", rows, json_length).astype(np.float32)
    return Prediction(probabilities, int(answer["model_version"]))


def encoded(instances: Sequence[Instance], slots: SlotList) -> tuple[Keys, npt.NDArray[np.int64]]:
    """Return (feasigns u64[n], lengths i64[rows, slots]) of instances given as slot name to feasigns.

    Raises ValueError for a slot that the model does not have, or a feasign outside 0 … 2^64-1.
    """
    lengths = np.zeros((len(instances), len(slots)), np.int64)
    feasigns: list[int] = []
    for row, instance in enumerate(instances):
        for name in instance:
            if name not in slots:
                raise ValueError(f"instance {row} has the slot {name!r}, which the model does not have")
        for column, name in enumerate(slots):
            values = list(instance.get(name, ()))
            lengths[row, column] = len(values)
            feasigns += values
    try:
        return np.array(feasigns, np.uint64), lengths
    except OverflowError as wrong:
        raise ValueError("a feasign is not below 2^64, or is negative") from wrong


# From here on, programs that read JSON, serving among them, round or refuse whole numbers.
_EXACT = 2**53


def has_large_numbers(rows: Sequence[Row]) -> bool:
    """True if a row has a whole number that JSON may not represent exactly; in a text column it is sent as text."""
    return any(_is_large(value) for row in rows for value in row.values())


def _is_large(value: object) -> bool:
    if isinstance(value, (int, np.integer)):
        return not -_EXACT < value < _EXACT
    return isinstance(value, (list, tuple, np.ndarray)) and any(map(_is_large, value))


def as_text(rows: Sequence[Row], columns: Mapping[str, str]) -> list[Row]:
    """Return rows in which such numbers of text columns are text, which is the same category."""
    texts = {name for name, datatype in columns.items() if datatype == "BYTES"}
    return [{name: _as_text(value) if name in texts else value for name, value in row.items()} for row in rows]


def _as_text(value: Cell) -> Cell:
    if isinstance(value, (list, tuple)):
        return [_as_text(each) for each in value]
    if isinstance(value, np.ndarray):
        return [_as_text(each) for each in value.tolist()]
    return str(value) if _is_large(value) else value


def rows_request(
    rows: Sequence[Row], shared: Row | None = None, top: int | None = None, columns: Mapping[str, str] | None = None
) -> bytes:
    """Return the body of a prediction of rows, or of candidates that have `shared` in common, with large numbers of text columns as text
    if `columns` is given. Raises ValueError naming row and column.
    """
    given = checked(rows)
    if columns is not None:
        given, shared = as_text(given, columns), None if shared is None else as_text([shared], columns)[0]
    document: dict[str, object] = {"instances": given} if shared is None else {"shared": shared, "candidates": given}
    document |= {} if top is None else {"top": top}
    try:
        return json.dumps(document, default=_plain, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (ValueError, TypeError) as wrong:
        # The value is searched only here, because failures are rare.
        rows_of = "rows" if shared is None else "candidates"
        named = [("shared", shared or {}), *((f"{rows_of}[{n}]", row) for n, row in enumerate(given))]
        reasons = (_refusal(value, f"{where}.{name}") for where, row in named for name, value in row.items())
        raise ValueError(next(filter(None, reasons), f"the rows cannot be written as JSON: {wrong}")) from None


def checked_shared(shared: Row, top: int | None) -> Row:
    """Return a shared part. Raises ValueError if it is no row, or `top` no number of rows."""
    if not isinstance(shared, Mapping):
        raise ValueError(f"shared is {_shown(shared)}; it must have a value for each shared column, as a dict")  # noqa: TRY004
    if top is not None and (type(top) is not int or top < 1):
        raise ValueError(f"top is {_shown(top)}; it must be a whole number, 1 or more")
    return shared


def checked(rows: Sequence[Row]) -> list[Row]:
    """Return rows as a list. Raises ValueError if they are no rows."""
    if isinstance(rows, Mapping):
        raise ValueError("rows are a list of rows; give [row] for one")  # noqa: TRY004 (as for any other rows)
    for number, row in enumerate(given := list(rows)):
        if not isinstance(row, Mapping):
            raise ValueError(f"rows[{number}] is {_shown(row)}; it must have a value for each column, as a dict")  # noqa: TRY004
    return given


def _plain(value: object) -> object:
    """Convert numpy values, and rows that are not dicts, for JSON. Raises TypeError for anything else."""
    if isinstance(value, (np.generic, np.ndarray)):
        plain: object = value.tolist()
        if type(plain) is not type(value):
            return plain
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{_shown(value)} is no value of a column")


def _refusal(value: object, where: str) -> str | None:
    """Return why a value cannot be sent in a request, or None."""
    if isinstance(value, (np.generic, np.ndarray)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return next(filter(None, (_refusal(each, f"{where}[{place}]") for place, each in enumerate(value))), None)
    if isinstance(value, float) and not math.isfinite(value):
        return f"{where} is {value}, which is no decimal number; give None for a missing value"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"{where} is {_shown(value)}, which is not Unicode text: it has half of a surrogate pair"
    elif not isinstance(value, (int, float, Mapping)) and value is not None:
        return f"{where} is {_shown(value)}; give text, a number, True or False, a list of these, or None for a missing value"
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text[:60]}{'…' if len(text) > 60 else ''}"


def rows_prediction_of(body: bytes, rows: int, top: int | None = None) -> Prediction:
    """Read the answer to a body of `rows` rows. Raises ValueError, KeyError, TypeError for any other body."""
    answer = json.loads(body)
    found = answer["predictions"]
    if len(found) != (rows if top is None else min(top, rows)):
        raise ValueError(f"it has {len(found)} predictions for {rows} rows")
    places = None if top is None else np.array([int(each) for each in answer["places"]], np.int64)
    return Prediction(np.array([float(each) for each in found], np.float32), int(answer["model_version"]), places)


def inputs_of(body: bytes) -> ModelInputs | None:
    """Read the metadata of a model; None while no version is live. Raises ValueError, KeyError, TypeError for any other answer."""
    document = json.loads(body)
    if not document["versions"]:
        return None
    version = int(document["versions"][0])
    kinds = {str(each["name"]): str(each["datatype"]) for each in document["inputs"]}
    # The metadata of a model of feasigns list `line`, then each slot and its lengths. No column has the datatype UINT64.
    slots = tuple(name for name, kind in kinds.items() if kind == "UINT64")
    if not slots and kinds.keys() <= {"line"}:
        raise ValueError("it names no slot and no column")
    return ModelInputs(version, SlotList(slots), {}) if slots else ModelInputs(version, None, kinds)


def sentence_of(body: bytes) -> str | None:
    """Return serving's own sentence in a refusal, or None."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return None
