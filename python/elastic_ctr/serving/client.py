"""A blocking client of serving: the Open Inference Protocol's binary tensors over one HTTP connection.

    with ServingClient("127.0.0.1:8400") as client:
        feasigns, lengths = client.encode([{"0": [17241709254077376921], "7": [5, 6]}])
        prediction = client.predict(feasigns, lengths)
        prediction.probabilities, prediction.version

A connection that was lost is made again at the next request. A request whose connection is lost may be asked again:
predictions change nothing.
"""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from elastic_ctr.features.slots import SlotList

Keys = npt.NDArray[np.uint64]
Lengths = npt.NDArray[np.integer[Any]]
JSON_LENGTH = "Inference-Header-Content-Length"


class ServingUnavailable(ConnectionError):
    """Serving cannot be reached, was silent for too long, or sent no reply of its protocol."""


class PredictionRefused(ValueError):
    """Serving answered with a refusal: its HTTP status and its sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Prediction(NamedTuple):
    """Probabilities f32 [rows] of a click, and the model version that they are of."""

    probabilities: npt.NDArray[np.float32]
    version: int


def tensor_request(feasigns: Keys, lengths: Lengths, slots: SlotList) -> tuple[bytes, int]:
    """The body of a prediction, and the length of the JSON in it. Raises ValueError when the two do not fit together."""
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
        "parameters": {"slot_list_check": slots.check()},
    }  # fmt: skip
    head = json.dumps(document, separators=(",", ":")).encode()
    return b"".join((head, *(values.tobytes() for _, _, values in tensors))), len(head)


def prediction_of(body: bytes, json_length: int) -> Prediction:
    """The answer to such a body. Raises ValueError, KeyError, TypeError of any other."""
    answer = json.loads(body[:json_length])
    [output] = answer["outputs"]
    [rows] = output["shape"]
    probabilities = np.frombuffer(body, "<f4", rows, json_length).astype(np.float32)
    return Prediction(probabilities, int(answer["model_version"]))


class ServingClient:
    """One connection. Not for several threads at once."""

    def __init__(self, address: str, *, model: str = "ctr", timeout_seconds: float = 10.0) -> None:
        """`address` is host:port of the HTTP frontend. Nothing is sent before the first request."""
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise ServingUnavailable(f"{address!r} is no address: write host:port")
        self.address = address
        self._path = f"/v2/models/{model}"
        self._connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout_seconds)
        self._slots: SlotList | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def slots(self) -> SlotList:
        """The slot list of the live version, asked for once. Raises PredictionRefused while there is none."""
        if self._slots is None:
            self._ask("GET", f"{self._path}/ready")
            body, _ = self._ask("GET", self._path)
            try:
                # One input of lines, then two of each slot.
                self._slots = SlotList(tuple(each["name"] for each in json.loads(body)["inputs"][1::2]))
            except (ValueError, KeyError, TypeError) as wrong:
                raise self._broken(f"its metadata cannot be read: {wrong}") from wrong
            # The native frontend leaves a connection that asks for anything but predictions to the slower one.
            self.close()
        return self._slots

    def forget_slots(self) -> None:
        """Ask for the slot list again at the next request, as after a refusal with status 409."""
        self._slots = None

    def encode(self, instances: Sequence[Mapping[str, Iterable[int]]]) -> tuple[Keys, npt.NDArray[np.int64]]:
        """(feasigns u64[n], lengths i64[rows, slots]) of instances given as slot name to feasigns.

        Raises ValueError for a slot that the model does not have, or a feasign outside 0 … 2^64-1.
        """
        slots = self.slots()
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

    def predict(self, feasigns: Keys, lengths: Lengths) -> Prediction:
        """Ask and wait.

        Args:
            feasigns: u64[n], by row, then by slot in the order of `slots()`.
            lengths: whole numbers [rows, slots]: how many of them belong to each.

        Raises:
            PredictionRefused: serving says why; after status 409 the slot list is asked for again.
            ServingUnavailable: see there.
            ValueError: the two do not fit together.
        """
        body, length = tensor_request(feasigns, lengths, self.slots())
        try:
            answer, answer_length = self._ask("POST", f"{self._path}/infer", body, {JSON_LENGTH: str(length)})
        except PredictionRefused as refused:
            if refused.status == http.client.CONFLICT:
                self.forget_slots()
            raise
        try:
            return prediction_of(answer, answer_length)
        except (ValueError, KeyError, TypeError) as wrong:
            raise self._broken(f"its answer cannot be read: {wrong}") from wrong

    def _ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, int]:
        """The body of the answer, and the length of the JSON in it."""
        try:
            self._connection.request(method, path, body, headers or {})
            response = self._connection.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as failed:
            raise self._broken(str(failed) or type(failed).__name__) from failed
        if response.status != http.client.OK:
            try:
                sentence = str(json.loads(answer)["error"])
            except (ValueError, KeyError, TypeError):
                sentence = f"{method} {path} was answered with status {response.status}"
            raise PredictionRefused(response.status, sentence)
        length = response.getheader(JSON_LENGTH, "")
        return answer, int(length) if length.isdecimal() else len(answer)

    def _broken(self, reason: str) -> ServingUnavailable:
        self.close()
        return ServingUnavailable(f"{self.address}: {reason}")
