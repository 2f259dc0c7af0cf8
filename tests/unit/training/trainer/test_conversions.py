"""From the settings of a trainer to the records of the engine."""

import hashlib
import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import xxhash

from credentials import tokens
from elastic_ctr.config.data import Data, DataSource
from elastic_ctr.config.feature_document import FeatureDocument, read_features
from elastic_ctr.config.features import Features
from elastic_ctr.features.transforms.transformer import MOST_OF_BATCH
from elastic_ctr.formats.inputs import NO_WORDS
from elastic_ctr.sources.streams.open import open_stream
from elastic_ctr.store.backends.source import FileSource
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.trainer.conversions import conversion_of, feature_document
from elastic_ctr.training.trainer.converter import convert_task
from elastic_ctr.training.trainer.task_lines import Suspects
from sources.intake.desk import TOKEN, desk, intake_file
from training.trainer.trainer_file import settings_of

FEATURES = Features.model_validate({"user": {"type": "categorical"}})


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ({"format": "csv"}, "label,user\n1,u1\n0,u2\n"),
        ({"format": "tsv", "columns": ["user", "label"]}, "u1\t1\nu2\t0\n"),
        ({"format": "jsonl"}, '{"label": 1, "user": "u1"}\n{"user": "u2", "label": 0}\n'),
        ({"format": "reader", "reader": "training.trainer.own_rows:rows"}, "1 u1\n0 u2\n"),
    ],
)
def test_the_same_rows_are_the_same_records_whoever_reads_them(
    tmp_path: Path, form: dict[str, object], text: str
) -> None:
    (tmp_path / "log").write_text(text)
    given = {"source": DataSource(url=f"file://{tmp_path}"), "start": "20200401/00", "label": "label"}
    data = Data.model_validate({**given, **form})
    settings = settings_of(tmp_path).model_copy(update={"data": data, "features": FEATURES})
    conversion = conversion_of(settings, feature_document(settings, None))
    task = control.Task(id="t", path="log", samples=2)

    result, refused = convert_task(FileSource(tmp_path), task, conversion, tmp_path / "out.txt")

    assert refused == []
    assert (result.records, result.clicks) == (2, 1)
    assert [(each.line, each.click) for each in result.samples] == [('{"user":"u1"}', 1), ('{"user":"u2"}', 0)]
    keys = [max(xxhash.xxh3_64_intdigest(b"user\0" + user), 1) for user in (b"u1", b"u2")]
    assert (tmp_path / "out.txt").read_text() == f"1 1 1 1 1 {keys[0]}\n1 1 1 0 1 {keys[1]}\n"
    assert sorted(conversion.sample([each.line for each in result.samples]).keys.tolist()) == sorted(keys)


def test_the_document_of_a_version_has_the_words_that_its_rows_were_read_with(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("label,user\n1,gone\n0,NULL\n")
    data = Data.model_validate(
        {
            "source": {"url": f"file://{tmp_path}"},
            "start": "20200401/00",
            "label": "label",
            "format": "csv",
            "missing": ["gone"],
        }
    )
    settings = settings_of(tmp_path).model_copy(update={"data": data, "features": FEATURES})
    document = feature_document(settings, None)
    assert document is not None

    convert_task(
        FileSource(tmp_path),
        control.Task(id="t", path="log"),
        conversion_of(settings, document),
        tmp_path / "out.txt",
    )

    key = xxhash.xxh3_64_intdigest(b"user\0NULL")
    assert (tmp_path / "out.txt").read_text() == f"1 1 1 1 1 0\n1 1 1 0 1 {key}\n"
    read = read_features(document.to_json(), document.digest)
    assert read.transformer().inputs.missing == (("gone",), ("gone",))


def test_a_document_of_an_earlier_release_keeps_its_digest_and_knows_no_words() -> None:
    text = FeatureDocument(features=FEATURES).to_json()
    assert json.loads(text).keys() == {"features", "statistics"}

    read = read_features(text, hashlib.sha256(text).hexdigest())

    assert read.transformer().inputs.missing == NO_WORDS


def test_rows_with_extreme_numbers_are_suspects_and_are_left_out_by_their_offsets(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("label,user,price\n1,u1,2\n0,u2,-1e5\n1,u3,1e4\n0,u4,\n0,u5,1e6\n0,u6,1e300\n")
    features = Features.model_validate(
        {"user": {"type": "categorical"}, "price": {"type": "numeric", "transform": [], "missing": 0}}
    )
    data = Data(source=DataSource(url=f"file://{tmp_path}"), start="20200401/00", label="label", format="csv")
    settings = settings_of(tmp_path).model_copy(update={"data": data, "features": features})
    conversion = conversion_of(settings, feature_document(settings, None))
    suspects, task = Suspects(tmp_path / "t.suspects"), control.Task(id="t", path="log", samples=5)

    before, _ = convert_task(FileSource(tmp_path), task, conversion, tmp_path / "out.txt", None, suspects)
    numbered = [line.split(" ")[:4] for line in suspects.file.read_text().splitlines()]
    # The engine has found two of them.
    found = suspects.left_out((np.array([0.0, 2.0]), np.array([0.0, 0.0])))
    task.left_out.extend(found)
    after, refused = convert_task(FileSource(tmp_path), task, conversion, tmp_path / "out.txt")

    assert (before.records, after.records) == (5, 3)
    assert numbered == [["1", str(number), "1", "0"] for number in range(3)]
    assert {each.reason: each.lines for each in after.refused} == {"unpredictable": 2, "number_too_large": 1}
    assert [(each["offset"], each["line"]) for each in refused if each["reason"] == "unpredictable"] == [
        (24, '{"user":"u2","price":-100000.0}'),
        (49, '{"user":"u5","price":1000000.0}'),
    ]
    assert str(refused[0]["detail"]).startswith(
        "price is -100000, of which the model has no prediction; give the feature"
    )
    assert {each.line for each in after.samples} == {
        '{"user":"u1","price":2.0}',
        '{"user":"u3","price":10000.0}',
        '{"user":"u4"}',
    }


def test_rows_that_make_many_keys_are_converted_in_pieces(tmp_path: Path) -> None:
    cell = " ".join(map(str, range(250)))
    (tmp_path / "log").write_text("label,a,b\n" + f"1,{cell},{cell}\n" * 200)
    lists = {name: {"type": "categorical", "separator": " "} for name in ("a", "b")}
    features = Features.model_validate({**lists, "ab": {"type": "crossed", "of": ["a", "b"], "hash": 9}})
    source = DataSource(url=f"file://{tmp_path}")
    data = Data(source=source, start="20200401/00", label="label", format="csv")
    settings = settings_of(tmp_path).model_copy(update={"data": data, "features": features})
    conversion = conversion_of(settings, feature_document(settings, None))

    result, _ = convert_task(FileSource(tmp_path), control.Task(id="t", path="log"), conversion, tmp_path / "out.txt")

    assert (result.records, result.clicks) == (200, 200)
    with (tmp_path / "out.txt").open() as out:
        assert len(set(out)) == 1


def test_samples_with_many_keys_together_are_scored_and_a_row_with_very_many_is_none(tmp_path: Path) -> None:
    few, many = " ".join(map(str, range(60))), " ".join(map(str, range(70)))
    (tmp_path / "log").write_text("label,a,b\n" + f"1,{many},{many}\n0,{few},{few}\n" * 2400)
    lists = {name: {"type": "categorical", "separator": " "} for name in ("a", "b")}
    features = Features.model_validate({**lists, "ab": {"type": "crossed", "of": ["a", "b"], "hash": 9}})
    data = Data(source=DataSource(url=f"file://{tmp_path}"), start="20200401/00", label="label", format="csv")
    settings = settings_of(tmp_path).model_copy(update={"data": data, "features": features})
    conversion = conversion_of(settings, feature_document(settings, None))
    task = control.Task(id="t", path="log", samples=2400)

    result, _ = convert_task(FileSource(tmp_path), task, conversion, tmp_path / "out.txt")
    sample = conversion.sample([each.line for each in result.samples])

    assert result.records == 4800
    assert {each.click for each in result.samples} == {0}
    assert len(sample.segments) == len(result.samples) * (60 + 60 + 60 * 60) > MOST_OF_BATCH


@pytest.mark.parametrize(
    ("form", "shown", "clicked"),
    [
        (
            {"format": "jsonl"},
            '{"id": "a", "user": "u1", "n": 1, "label": 0}\n{"id": "b", "user": "u2", "n": 1, "label": 0}\n',
            '{"id": "b", "label": 1}\n',
        ),
        ({"format": "csv"}, 'a,"u,1",1,0\nb,"u,2",1,0\n', "b,,,1\n"),
        ({"format": "tsv"}, "a\tu1\t1\t0\nb\tu2\t1\t0\n", "b\t\t0\t1\n"),
    ],
)
def test_a_click_that_an_intake_has_joined_is_the_record_of_its_impression_without_its_show(
    tmp_path: Path, form: dict[str, object], shown: str, clicked: str
) -> None:
    columns = None if form["format"] == "jsonl" else ["id", "user", "n", "label"]
    data = {
        **form, "columns": columns, "slots": None, "label": "label", "shows": "n",
        "stream": {"lateClicks": True, "join": {"key": "id"}},
    }  # fmt: skip
    file = intake_file(tmp_path / "log", data, {"user": {"type": "categorical"}})
    settings = settings_of(tmp_path).model_copy(update={"data": file.data, "features": FEATURES})
    conversion = conversion_of(settings, feature_document(settings, None))

    with desk(file) as door, closing(open_stream(f"intake://{door.netloc}", tokens=tokens(TOKEN))) as stream:
        door.post(shown)
        assert door.post(clicked).json() == {"partition": door.partition, "first": 2, "end": 3}
        task = control.Task(id="t", path=door.partition, start=0, end=3)
        result, refused = convert_task(stream, task, conversion, tmp_path / "out.txt")

    assert refused == []
    assert (result.records, result.shows, result.clicks) == (3, 2, 1)
    [_, second, late] = [line.split() for line in (tmp_path / "out.txt").read_text().splitlines()]
    assert late[-1] == second[-1]
