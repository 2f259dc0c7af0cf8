"""Training and serving cannot read a row differently: every file format and every door gives the same bits."""

import csv
import io
import json
import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_ctr.config.feature_program import transformer_of
from elastic_ctr.config.features import Features
from elastic_ctr.features.transforms.transformer import Transformed, Transformer
from elastic_ctr.formats.cells import cells_of
from elastic_ctr.formats.inputs import USUAL_WORDS
from elastic_ctr.formats.json_rows import row_of
from elastic_ctr.formats.readers.batches import Format, Kind, Wanted
from elastic_ctr.formats.readers.files import rows_in_range
from elastic_ctr.serving import open_inference_pb2 as messages
from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.frontends.grpc import inference_of
from elastic_ctr.serving.protocols.open_inference import parse_infer
from elastic_ctr.serving.protocols.rows_json import parse_rows

FEATURES = Features.model_validate(
    {
        "both": {"type": "crossed", "of": ["user", "item"]},
        "dear": {"type": "bucketized", "column": "price", "boundaries": [-1.5, 0, 1, 1e6]},
        "flag": {"type": "categorical", "vocabulary": ["true"]},
        "item": {"type": "categorical", "hash": 1000},
        "price": {"type": "numeric", "transform": ["log1p", {"round": 5}], "missing": -1},
        "raw": {"type": "numeric", "column": "price", "transform": [], "missing": 0},
        "round": {"type": "categorical", "column": "price", "round": 2},
        "tags": {"type": "categorical", "separator": "|", "pooling": "mean"},
        "title": {"type": "text", "ngrams": [1, 2]},
        "user": {"type": "categorical"},
    }
)
TRANSFORMER = transformer_of(FEATURES, None, USUAL_WORDS)
SCHEMA = Schema(TRANSFORMER.slots, TRANSFORMER, "d" * 64)
ROWS = 40  # of an example; 250 examples are 10,000 rows

# Lines of a CSV file are rows, and its text is of no separator.
text = st.text(st.characters(exclude_characters="\n\r\t|", codec="utf-8"), max_size=12)
words = text | st.sampled_from(["", " ", '"', ',"', "nan", "-0", "007", "é" * 300, *USUAL_WORDS.texts, "NA"])
row = st.fixed_dictionaries(
    {},
    optional={
        "user": words,
        "item": st.integers(-(2**63), 2**63 - 1),
        "flag": st.booleans(),
        "price": st.floats(-1e6, 1e6) | st.sampled_from([-0.0, 1e6, 5e-324, 0.1]),
        "tags": st.lists(words, max_size=4),
        "title": words,
    },
)
NAMES = ("user", "item", "flag", "price", "tags", "title")
Row = dict[str, Any]


def in_text(value: Any) -> str:
    if isinstance(value, list):
        return "|".join(each for each in value if each)
    return repr(value).lower() if isinstance(value, (bool, float)) else str(value)


def as_csv(rows: list[Row]) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n", quoting=csv.QUOTE_ALL)
    writer.writerow(["label", *NAMES])
    writer.writerows([0, *(in_text(each[name]) if name in each else "" for name in NAMES)] for each in rows)
    return out.getvalue().encode()


def as_tsv(rows: list[Row]) -> bytes:
    lines = [
        ["label", *NAMES],
        *(["1", *(in_text(each[name]) if name in each else "" for name in NAMES)] for each in rows),
    ]
    return "".join("\t".join(line) + "\n" for line in lines).encode()


def as_jsonl(rows: list[Row]) -> bytes:
    return "".join(json.dumps({"label": 0, **each}) + "\n" for each in rows).encode()


def as_parquet(rows: list[Row]) -> bytes:
    types = {
        "user": pa.string(), "item": pa.int64(), "flag": pa.bool_(), "price": pa.float64(), "tags": pa.list_(pa.string()),
        "title": pa.dictionary(pa.int32(), pa.string()),
    }  # fmt: skip
    columns = {name: pa.array([each.get(name) for each in rows], kind) for name, kind in types.items()}
    out = io.BytesIO()
    pq.write_table(pa.table({"label": pa.array([1] * len(rows), pa.int8()), **columns}), out, row_group_size=7)
    return out.getvalue()


FILES: dict[Kind, Any] = {"csv": as_csv, "tsv": as_tsv, "jsonl": as_jsonl, "parquet": as_parquet}


def trained(kind: Kind, data: bytes) -> list[Transformed]:
    """As a trainer converts a task of the whole file."""
    batches = list(rows_in_range(io.BytesIO(data), f"rows.{kind}", Format(kind), Wanted(TRANSFORMER.inputs, "label")))
    assert [each for batch in batches for each in batch.refused] == []
    return [TRANSFORMER.transform(batch.cells) for batch in batches]


def bits(keys: Any, lengths: Any, numbers: Any) -> tuple[list[int], list[int], list[list[int]]]:
    return keys.tolist(), lengths.tolist(), numbers.view(np.uint32).tolist()


def of_instances(found: Instances) -> tuple[list[int], list[int], list[list[int]]]:
    assert found.numbers is not None
    return bits(found.feasigns, found.lengths, found.numbers)


def in_tensors(rows: list[Row]) -> list[tuple[str, str, list[Any]]]:
    """A column as a tensor; a number is in every row or in none."""
    found: list[tuple[str, str, list[Any]]] = [
        (name, "BYTES", [in_text(each[name]) if name in each else "" for each in rows])
        for name in ("user", "tags", "title")
    ]
    for name, kind in (("item", "INT64"), ("flag", "BOOL"), ("price", "FP64")):
        if all(name in each for each in rows):
            found.append((name, kind, [each[name] for each in rows]))
        elif name != "price":
            found.append((name, "BYTES", [in_text(each[name]) if name in each else "" for each in rows]))
    return found


def raw(kind: str, values: list[Any]) -> bytes:
    if kind == "BYTES":
        return b"".join(struct.pack("<I", len(each.encode())) + each.encode() for each in values)
    return np.array(values, {"INT64": "<i8", "BOOL": "?", "FP64": "<f8"}[kind]).tobytes()


@given(st.lists(row, min_size=ROWS, max_size=ROWS))
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
def test_files_and_requests_give_the_same_bits(rows: list[Row]) -> None:
    asked = of_instances(parse_rows(json.dumps({"instances": rows}).encode(), SCHEMA, 1000))

    for kind, write in FILES.items():
        parts = trained(kind, write(rows))
        found = bits(
            *(np.concatenate([getattr(part, name) for part in parts]) for name in ("keys", "lengths", "numbers"))
        )
        assert found == asked, kind

    with_price = [each for each in rows if "price" in each] or [{"price": 1.0}]
    wanted = of_instances(parse_rows(json.dumps({"instances": with_price}).encode(), SCHEMA, 1000))
    described, behind, message = [], b"", messages.ModelInferRequest()
    for name, datatype, values in in_tensors(with_price):
        data = raw(datatype, values)
        shape: Row = {"name": name, "datatype": datatype, "shape": [len(values)]}
        described.append({**shape, "parameters": {"binary_data_size": len(data)}})
        behind += data
        message.inputs.add(**shape)
        message.raw_input_contents.append(data)
    head = json.dumps({"inputs": described}).encode()
    assert of_instances(parse_infer(head + behind, len(head)).instances(SCHEMA, 1000)) == wanted
    assert of_instances(inference_of(message, 1000).instances(SCHEMA, 1000)) == wanted


@pytest.mark.parametrize("word", USUAL_WORDS.numbers)
def test_a_word_for_a_missing_value_is_one_in_files_and_requests(word: str) -> None:
    empty: Row = {"user": None}
    given_: Row = {"label": 0, "user": word, "price": word}
    if word not in USUAL_WORDS.texts:
        empty["user"] = given_["user"] = "u"
    due = of_instances(parse_rows(json.dumps({"instances": [{"user": empty["user"]}]}).encode(), SCHEMA, 1))

    lines: dict[Kind, str] = {
        "csv": f"label,user,price\n0,{given_['user']},{word}\n",
        "tsv": f"label\tuser\tprice\n0\t{given_['user']}\t{word}\n",
        "jsonl": json.dumps(given_) + "\n",
    }
    features = Features.model_validate(
        {"user": {"type": "categorical"}, "price": {"type": "numeric", "transform": [], "missing": -1}}
    )
    transformer = transformer_of(features, None, USUAL_WORDS)
    asked = bits(*_arrays(transformer, [row_of({"user": empty["user"]}, transformer.inputs)]))
    assert bits(*_arrays(transformer, [row_of(given_, transformer.inputs)])) == asked
    for kind, text in lines.items():
        [batch] = rows_in_range(
            io.BytesIO(text.encode()), f"rows.{kind}", Format(kind), Wanted(transformer.inputs, "label")
        )
        found = transformer.transform(batch.cells)
        assert bits(found.keys, found.lengths, found.numbers) == asked, kind
    request = {"instances": [{key: value for key, value in given_.items() if key != "label"}]}
    assert of_instances(parse_rows(json.dumps(request).encode(), SCHEMA, 1)) == due


def _arrays(transformer: Transformer, rows: list[Any]) -> tuple[Any, Any, Any]:
    found = transformer.transform(cells_of(rows, transformer.inputs))
    return found.keys, found.lengths, found.numbers


def test_nan_of_parquet_is_a_missing_number_where_it_is_such_a_word() -> None:
    [found] = trained("parquet", as_parquet([{"user": "u", "price": math.nan}]))

    asked = of_instances(parse_rows(b'{"instances": [{"user": "u"}]}', SCHEMA, 1))
    assert bits(found.keys, found.lengths, found.numbers) == asked


@given(st.lists(st.sampled_from([math.inf, -math.inf, 1.0]), min_size=1, max_size=6))
def test_an_infinite_number_is_refused_in_every_format(prices: list[float]) -> None:
    rows = [{"price": each, "user": "u"} for each in prices]
    good = [number for number, each in enumerate(prices) if math.isfinite(each)]
    nan_is_missing = pa.array(prices, pa.float64())
    assert nan_is_missing.null_count == 0

    for kind in FILES.keys() - {"jsonl"}:  # JSON has no such number
        data = FILES[kind](rows)
        batches = list(
            rows_in_range(io.BytesIO(data), f"rows.{kind}", Format(kind), Wanted(TRANSFORMER.inputs, "label"))
        )
        assert sum(len(batch.cells) for batch in batches) == len(good), kind
        assert {each.reason.value for batch in batches for each in batch.refused} <= {"not_finite"}
