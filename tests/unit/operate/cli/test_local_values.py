from pathlib import Path

import pytest

from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.operate.cli.given_values import load_values

STREAM = "data:\n  source: {url: %r}\n  start: earliest\n  slots: ['0']\n"


def test_a_followed_folder_counts_from_the_folder_of_its_values_file(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(STREAM % "file:log?follow")

    values = load_values([tmp_path / "values.yaml"], None)

    assert values.data.source.url == f"file://{tmp_path}/log?follow"
    assert values.data.is_stream


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ("  end: 20200401/00\n", "is a stream: start is `earliest` or `latest`, and there is no end"),
        ("  format: parquet\n  label: click\n", "slots is for `format: clicks`"),
    ],
)
def test_values_of_hours_are_refused_for_a_stream(tmp_path: Path, changes: str, sentence: str) -> None:
    (tmp_path / "values.yaml").write_text(STREAM % "kafka://broker:9092/clicks" + changes)

    with pytest.raises(ConfigRefused, match=sentence):
        load_values([tmp_path / "values.yaml"], None)


def test_a_topic_without_a_name_is_no_address(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(STREAM % "kafka://broker:9092")

    with pytest.raises(ConfigRefused, match="kafka://broker:9092/topic"):
        load_values([tmp_path / "values.yaml"], None)


def test_hours_need_a_first_one(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(STREAM % "file:///logs")

    with pytest.raises(ConfigRefused, match="start earliest is of streams and tables, and file:///logs is neither"):
        load_values([tmp_path / "values.yaml"], None)


HOURS = "data:\n  source: {url: 'file:///logs'}\n  start: 20200401/00\n  end: 20200401/03\n  slots: ['0']\n"


def test_the_last_hour_to_train_may_be_said_beside_the_values_file(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(HOURS)

    assert load_values([tmp_path / "values.yaml"], None, "20200401/01").data.end == "20200401/01"
    assert load_values([tmp_path / "values.yaml"], None).data.end == "20200401/03"
    with pytest.raises(ConfigRefused, match="end 20200331/23 is before start 20200401/00"):
        load_values([tmp_path / "values.yaml"], None, "20200331/23")
