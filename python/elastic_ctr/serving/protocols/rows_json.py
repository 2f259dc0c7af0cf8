"""`POST /v1/models/NAME:predict`: rows of columns, in the shape of KServe's V1 protocol and of TensorFlow Serving's row format.

    {"instances": [{"user": "u1", "price": 3.2, "tags": ["a", "b"]}, …]}
    {"predictions": [0.0123, …], "model_version": "1786000000"}

A prediction is the probability of a click. A column that a row lacks, or that is null, is missing. The only other field allowed beside
`instances` is `signature_name`, which clients of TensorFlow Serving send.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from elastic_ctr.config.feature_program import transformer_of
from elastic_ctr.config.features import Features
from elastic_ctr.features.transforms.transformer import TooManyKeys, Transformer
from elastic_ctr.formats.cells import Cells, cells_of
from elastic_ctr.formats.inputs import USUAL_WORDS, InputColumns
from elastic_ctr.formats.json_rows import CellRefused, Row, row_of, unknown_column
from elastic_ctr.formats.json_scan import RowScanner
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.protocols.json_fields import enough_instances, fields, items, json_object
from elastic_ctr.serving.request_error import BadRequest, RequestError, short_repr

_NAMES = ("instances", "signature_name")


def parse_rows(body: bytes, schema: Schema, max_instances: int) -> Instances:
    """Read a body. Raises RequestError for anything but the request above."""
    transformer = schema.of_rows()
    given = items(rows_object(body, transformer.inputs, schema)["instances"], "instances")
    enough_instances(len(given), max_instances, "instances")
    rows = [_row(each, number, schema, transformer.inputs) for number, each in enumerate(given)]
    return instances_of_cells(cells_of(rows, transformer.inputs), transformer, "instances")


def rows_object(body: bytes, inputs: InputColumns, schema: Schema) -> dict[str, Any]:
    """Return the body as an object with instances. Raises RequestError."""
    # An ignored column may come twice.
    known = {*inputs.columns, *_NAMES} if schema.ignores_unknown else None
    return fields(json_object(body, known), "", _NAMES[:1], _NAMES[1:])


def _row(given: Any, number: int, schema: Schema, inputs: InputColumns) -> Row:
    if type(given) is not dict:
        raise BadRequest(
            f"instances[{number}] is {short_repr(given)}; it must be an object with a value for each column"
        )
    refuse_unknown(given, f"instances[{number}]", schema)
    try:
        return row_of(given, inputs)
    except CellRefused as refused:
        raise BadRequest(f"instances[{number}].{refused}") from None


def refuse_unknown(given: Mapping[str, Any], where: str, schema: Schema) -> None:
    """Raises BadRequest for a column that no feature reads, unless the schema ignores such columns."""
    columns = schema.of_rows().inputs.columns
    if not schema.ignores_unknown and (unknown := unknown_column(given, columns)) is not None:
        raise BadRequest(
            f"{where} has the column {short_repr(unknown)}, which no feature reads; they read {listed(columns)} "
            "(serving.config.ignoreUnknown allows others)"
        )


def instances_of_cells(cells: Cells, transformer: Transformer, where: str) -> Instances:
    """Transform rows. Raises RequestError if a row has too many keys or too large a number, or all rows together too many keys."""
    try:
        found = transformer.transform(cells)
    except TooManyKeys as refused:
        raise RequestError(413, str(refused)) from None
    for row, _, detail in transformer.refusals(cells, found):
        raise BadRequest(f"{where}[{row}]: {detail.removesuffix('.')}")
    return Instances(found.keys, found.lengths, len(cells), numbers=found.numbers)


def rows_answer(probabilities: Floats, version: int) -> bytes:
    answer = {"predictions": np.ascontiguousarray(probabilities, np.float32), "model_version": str(version)}
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
    cells = RowScanner(transformer.inputs, 1, skips=False).read(b'{"instances":[{"user":"a","price":1}]}')
    assert cells is not None
    transformer.transform(cells)
