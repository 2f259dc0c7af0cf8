"""Rows and lines of a block: what is scored, what is refused, and where each stands."""

import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elastic_ctr.config.data import Data, DataSource
from elastic_ctr.config.feature_document import FeatureDocument
from elastic_ctr.config.features import Features
from elastic_ctr.features.transforms.row_loop import MOST_KEYS
from elastic_ctr.formats.cells import cells_of
from elastic_ctr.formats.readers.batches import ColumnsRefused
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.jobs.scoring.records import Records, reader_of
from elastic_ctr.serving.batching.schema import Schema

FEATURES = {"user": {"type": "categorical"}, "tags": {"type": "categorical", "separator": "|"}, "price": {"type": "numeric", "transform": [], "missing": 0}}  # fmt: skip
TRANSFORMER = FeatureDocument(features=Features.model_validate(FEATURES)).transformer()
OF_ROWS = Schema(TRANSFORMER.slots, TRANSFORMER, "digest")
OF_LINES = Schema(SlotList(("0", "7")))
SOURCE = DataSource(url="file:///d")


def data_of(form: str, **more: Any) -> Data:
    return Data.model_validate({"source": SOURCE, "start": "20200401/00", "format": form, **more})


CSV = data_of("csv", label="clicked")


def blocks(data: Data, text: bytes, schema: Schema = OF_ROWS, copied: Sequence[str] = (), **more: Any) -> list[Records]:
    reader = reader_of(schema, data, None, copied, no_clicks=more.get("no_clicks", False))
    return list(reader.blocks(io.BytesIO(text), "a/part-0", more.get("start", 0), more.get("stop", 0)))


def keys_of(*rows: tuple[str, str, float]) -> tuple[list[int], list[int], list[float]]:
    rank = {text.column: place for place, text in enumerate(TRANSFORMER.inputs.texts)}
    texts = [sorted((("user", user), ("tags", tags)), key=lambda each: rank[each[0]]) for user, tags, _ in rows]
    cells = [([text.encode() for _, text in row], [price]) for row, (_, _, price) in zip(texts, rows, strict=True)]
    found = TRANSFORMER.transform(cells_of(cells, TRANSFORMER.inputs))
    return found.keys.tolist(), found.lengths.tolist(), found.numbers[:, 0].tolist()


def test_rows_keep_their_places_around_refused_ones() -> None:
    text = b"clicked,id,user,tags,price\n1,a,u1,x|y,2\n0,b,u2,,cheap\n\n0,d,u3,z,\n7,e,u4,,1\n1,f,u5,x,3\n"

    [block] = blocks(CSV, text, copied=["id"])

    assert (block.rows, block.places.tolist()) == (6, [0, 3, 5])
    assert [(each.place, each.reason.value) for each in block.refused] == [
        (1, "not_a_number"), (2, "empty"), (4, "bad_label"),
    ]  # fmt: skip
    assert (block.shows.tolist(), block.clicks.tolist()) == ([1, 1, 1], [1, 0, 1])
    assert block.copied == (["a", "d", "f"],)
    keys, lengths, numbers = keys_of(("u1", "x|y", 2), ("u3", "z", np.nan), ("u5", "x", 3))
    assert block.instances.feasigns.tolist() == keys
    assert block.instances.lengths.tolist() == lengths
    assert block.instances.numbers is not None
    assert block.instances.numbers[:, 0].tolist() == numbers


def test_every_format_gives_the_same_instances() -> None:
    rows = [(1, "u1", "x|y", 2.0), (0, "u2", "", None), (1, "7", "z", 3.5)]
    lines = "".join(f"{label}\t{user}\t{tags}\t{'' if price is None else price}\n" for label, user, tags, price in rows)
    as_json = "".join(
        json.dumps({"clicked": label, "user": user, "tags": tags.split("|") if tags else None, "price": price}) + "\n"
        for label, user, tags, price in rows
    )
    table = pa.table({
        "clicked": [row[0] for row in rows], "user": [row[1] for row in rows],
        "tags": [row[2].split("|") if row[2] else None for row in rows], "price": [row[3] for row in rows],
    })  # fmt: skip
    parquet = io.BytesIO()
    pq.write_table(table, parquet)
    found = [
        blocks(data_of("tsv", label="clicked", columns=["clicked", "user", "tags", "price"]), lines.encode()),
        blocks(data_of("jsonl", label="clicked"), as_json.encode()),
        blocks(data_of("parquet", label="clicked"), parquet.getvalue()),
    ]

    keys, lengths, numbers = keys_of(
        *((user, tags, np.nan if price is None else price) for _, user, tags, price in rows)
    )
    for [block] in found:
        assert block.instances.feasigns.tolist() == keys
        assert block.instances.lengths.tolist() == lengths
        assert block.instances.numbers is not None
        assert block.instances.numbers[:, 0].tolist() == numbers
        assert (block.clicks.tolist(), block.rows, block.refused) == ([1, 0, 1], 3, [])


def test_a_row_with_too_many_keys_is_refused_and_its_neighbours_are_not() -> None:
    many = "|".join(map(str, range(MOST_KEYS + 1)))

    [block] = blocks(CSV, f"clicked,user,tags,price\n0,u1,x,1\n1,u2,{many},1\n1,u3,y,1\n".encode())

    assert (block.rows, block.places.tolist(), block.clicks.tolist()) == (3, [0, 2], [0, 1])
    [refused] = block.refused
    assert (refused.place, refused.reason.value) == (1, "too_many_keys")
    assert block.instances.feasigns.tolist() == keys_of(("u1", "x", 1), ("u3", "y", 1))[0]


def test_a_row_with_a_number_that_is_too_large_is_refused_and_its_neighbours_are_not() -> None:
    [block] = blocks(CSV, b"clicked,user,tags,price\n0,u1,x,1\n1,u2,x,1e12\n1,u3,y,1\n")

    [refused] = block.refused
    assert (refused.place, refused.reason.value) == (1, "number_too_large")
    assert "the column 'price' is 1e+12, of which the feature 'price' makes 1e+12" in refused.detail
    assert block.places.tolist() == [0, 2]


def test_rows_to_predict_need_no_label() -> None:
    text = b"user,tags,price\nu1,x,1\n"

    [block] = blocks(CSV, text, no_clicks=True)

    assert (block.rows, block.shows.tolist(), block.clicks.tolist()) == (1, [1], [0])
    with pytest.raises(ColumnsRefused, match="lacks the column 'clicked'"):
        blocks(CSV, text)


def test_a_column_to_copy_that_is_not_there_is_named() -> None:
    with pytest.raises(ColumnsRefused, match="lacks the column 'where'"):
        blocks(CSV, b"clicked,user,tags,price\n0,u1,x,1\n", copied=["where"])


LINES = data_of("clicks", slots=["0", "7"], maxLineBytes=64)


def test_lines_keep_their_places_and_a_too_long_one_is_one_row() -> None:
    text = b"1 0 5:0 6:7\n\n3 1 bad\n" + b"9" * 5000 + b"\n2 2 7:unread\r\n1 1 8:7"

    found = blocks(LINES, text, OF_LINES)

    assert sum(block.rows for block in found) == 6
    at, places, reasons = 0, [], []
    for block in found:
        places += [at + place for place in block.places.tolist()]
        reasons += [(at + each.place, each.reason.value) for each in block.refused]
        at += block.rows
    assert (places, reasons) == ([0, 4, 5], [(1, "empty"), (2, "no_colon"), (3, "too_long")])
    assert [show for block in found for show in block.shows.tolist()] == [1, 2, 1]
    assert [key for block in found for key in block.instances.feasigns.tolist()] == [5, 6, 0, 0, 0, 8]


def test_lines_without_clicks_are_features_alone_and_may_be_empty() -> None:
    [block] = blocks(LINES, b"5:0 6:7\n\nbad\n7:0\n", OF_LINES, no_clicks=True)

    assert (block.rows, block.places.tolist()) == (4, [0, 1, 3])
    assert [each.place for each in block.refused] == [2]
    assert block.instances.feasigns.tolist() == [5, 6, 0, 0, 7, 0]


@pytest.mark.parametrize("cut", [1, 7, 12, 13, 20])
def test_each_line_is_in_one_part_wherever_the_file_is_cut(cut: int) -> None:
    text = b"1 0 5:0 6:7\n1 1 7:0\n2 1 8:7\n"

    found = [*blocks(LINES, text, OF_LINES, stop=cut), *blocks(LINES, text, OF_LINES, start=cut)]

    assert [key for block in found for key in block.instances.feasigns.tolist()] == [5, 6, 7, 0, 0, 8]


def test_a_version_of_other_inputs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the version takes lines of feasigns, and data\.format is csv"):
        blocks(CSV, b"", OF_LINES)
    with pytest.raises(ValueError, match=r"the version takes rows of columns, and data\.format is clicks"):
        blocks(LINES, b"", OF_ROWS)
    with pytest.raises(ValueError, match="--copy is for rows of columns"):
        blocks(LINES, b"", OF_LINES, copied=["user"])
