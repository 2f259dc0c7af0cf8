"""`POST /v1/models/NAME:predict`: rows of columns, in the shape of KServe's V1 protocol and of TensorFlow Serving's row format.

    {"instances": [{"user": "u1", "price": 3.2, "tags": ["a", "b"]}, …]}
    {"predictions": [0.0123, …], "model_version": "1786000000"}

A prediction is the probability of a click. A column that a row lacks, or that is null, is missing. The only other field allowed beside
`instances` is `signature_name`, which clients of TensorFlow Serving send.

Rows with columns in common are written with a shared part and candidates. A column is in one of both. With `top` the answer has the
candidates with the highest probabilities, best first, and their places in the request:

    {"shared": {"user": "u1"}, "candidates": [{"price": 3.2}, …], "top": 20}
    {"predictions": [0.31, …], "places": [17, …], "model_version": "1786000000"}
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from elastic_ctr.config.feature_program import transformer_of
from elastic_ctr.config.features import Features
from elastic_ctr.features.transforms.transformer import TooManyKeys, Transformer
from elastic_ctr.formats.cells import Cells, SharedCells, cells_of
from elastic_ctr.formats.inputs import USUAL_WORDS, InputColumns
from elastic_ctr.formats.json_rows import CellRefused, Row, row_of, unknown_column
from elastic_ctr.formats.json_scan import Candidates, RowScanner
from elastic_ctr.serving.batching.instances import Instances, Lengths, SharedFeasigns, in_both
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.protocols.json_fields import REQUEST_FIELDS, given_rows, json_object
from elastic_ctr.serving.request_error import BadRequest, RequestError, short_repr

_SIGNATURE = "signature_name"


def parse_rows(body: bytes, schema: Schema, max_instances: int) -> Instances:
    """Read a body. Raises RequestError for anything but the requests above."""
    transformer = schema.of_rows()
    # An ignored column may come twice.
    known = {*transformer.inputs.columns, *REQUEST_FIELDS, _SIGNATURE} if schema.ignores_unknown else None
    given = given_rows(json_object(body, known), max_instances, (_SIGNATURE,))
    rows = [_row(each, f"{given.name}[{number}]", schema) for number, each in enumerate(given.rows)]
    cells = cells_of(rows, transformer.inputs)
    if not given.has_shared:
        return instances_of_cells(cells, transformer, given.name)
    shared = cells_of([_row(given.shared, "shared", schema)], transformer.inputs)
    columns = given.shared.keys() & set(transformer.inputs.columns)
    for number, row in enumerate(given.rows):
        if (twice := next((column for column in row if column in columns), None)) is not None:
            raise in_both(f"candidates[{number}] has the column {short_repr(twice)}", "column")
    common = SharedCells(shared, given_cells(given.shared, transformer.inputs), np.zeros(len(rows), np.int64))
    return replace(instances_of_cells(cells, transformer, given.name, common), top=given.top)


def given_cells(columns: Collection[str], inputs: InputColumns) -> npt.NDArray[np.bool_]:
    """Return bool [1, texts + numbers], true for the cells of these columns."""
    of_cells = (*(each.column for each in inputs.texts), *inputs.numbers)
    return np.array([[column in columns for column in of_cells]], np.bool_)


def _row(given: Any, where: str, schema: Schema) -> Row:
    if type(given) is not dict:
        raise BadRequest(f"{where} is {short_repr(given)}; it must be an object with a value for each column")
    refuse_unknown(given, where, schema)
    try:
        return row_of(given, schema.of_rows().inputs)
    except CellRefused as refused:
        raise BadRequest(f"{where}.{refused}") from None


def refuse_unknown(given: Mapping[str, Any], where: str, schema: Schema) -> None:
    """Raises BadRequest for a column that no feature reads, unless the schema ignores such columns."""
    columns = schema.of_rows().inputs.columns
    if not schema.ignores_unknown and (unknown := unknown_column(given, columns)) is not None:
        raise BadRequest(
            f"{where} has the column {short_repr(unknown)}, which no feature reads; they read {listed(columns)} "
            "(serving.config.ignoreUnknown allows others)"
        )


def instances_of_cells(
    cells: Cells, transformer: Transformer, where: str, shared: SharedCells | None = None
) -> Instances:
    """Transform rows, of which all have the cells `shared`, too.

    Raises RequestError if a row has too many keys or too large a number, or all rows together too many keys.
    """
    try:
        if shared is None:
            found, common = transformer.transform(cells), None
        else:
            found, of_groups = transformer.transform_sharing(cells, shared)
            for _, _, detail in transformer.refusals(shared.cells, of_groups):
                raise BadRequest(f"shared: {detail.removesuffix('.')}")
            lengths = of_groups.lengths.reshape(len(shared.cells), -1)
            common = SharedFeasigns(of_groups.keys, lengths, shared.groups)
    except TooManyKeys as refused:
        raise RequestError(413, str(refused)) from None
    for row, _, detail in transformer.refusals(cells, found):
        raise BadRequest(f"{where}[{row}]: {detail.removesuffix('.')}")
    return Instances(found.keys, found.lengths, len(cells), numbers=found.numbers, shared=common)


def instances_of_candidates(given: Candidates, transformer: Transformer) -> Instances:
    """Transform rows with a shared part, as above."""
    found = instances_of_cells(given.cells, transformer, "candidates", given.shared)
    return replace(found, top=given.top)


def rows_answer(probabilities: Floats, version: int, places: Lengths | None = None) -> bytes:
    answer = {
        "predictions": np.ascontiguousarray(probabilities, np.float32),
        **({} if places is None else {"places": places}),
        "model_version": str(version),
    }
    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def listed(names: tuple[str, ...]) -> str:
    """Return names for a sentence, at most ten."""
    return ", ".join(names[:10]) + (f" … ({len(names)} in all)" if len(names) > 10 else "")


def warm_rows() -> None:
    """Compile before the first request."""
    features = Features.model_validate(
        {"user": {"type": "categorical"}, "price": {"type": "numeric", "transform": [], "missing": 0}}
    )
    transformer = transformer_of(features, None, USUAL_WORDS)
    scanner = RowScanner(transformer.inputs, 1, skips=False)
    cells = scanner.read(b'{"instances":[{"user":"a","price":1}]}')
    assert cells is not None
    transformer.transform(cells)
    candidates = scanner.read_candidates(b'{"shared":{"user":"a"},"candidates":[{"price":1}],"top":1}')
    assert candidates is not None
    instances_of_candidates(candidates, transformer)
