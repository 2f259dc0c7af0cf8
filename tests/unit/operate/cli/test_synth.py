from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from elastic_ctr.config.feature_rules import input_of
from elastic_ctr.formats.line import parse_line
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.operate.cli.given_values import load_values
from elastic_ctr.operate.cli.synth import synth

app = typer.Typer()
app.command()(synth)


def call(out: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [str(out), *arguments])


def lines(out: Path, pattern: str = "????????/??/part-*") -> list[bytes]:
    return [line for path in sorted(out.glob(pattern)) for line in path.read_bytes().splitlines()]


def test_hours_lines_and_their_true_probabilities_are_written(tmp_path: Path) -> None:
    done = call(tmp_path / "out", "--hours", "3", "--rows", "1000", "--seed", "5", "--start", "20200401/23")

    assert done.exit_code == 0, done.output
    assert "1000 lines with" in done.output
    assert (
        f"next: elastic-ctr local up -f {tmp_path}/out/values.yaml --to 20200402/00    # train all hours but the last"
        in done.stderr
    )
    names = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").glob("20*/*/*"))
    hours = ["20200401/23", "20200402/00", "20200402/01"]
    assert names == [f"{hour}/{name}" for hour in hours for name in ("donefile", "part-00000", "part-00001")]
    slots = SlotList.parse((tmp_path / "out" / "slot.conf").read_text())
    assert len(slots) == 8
    for name in [name for name in names if "part" in name]:
        texts = (tmp_path / "out" / name).read_bytes().splitlines()
        truths = (tmp_path / "out" / "truth" / name).read_bytes().splitlines()
        assert len(texts) == len(truths) > 0
        assert all(0 < float(truth) < 1 for truth in truths)
        assert all(parse_line(text, slots, None).show == 1 for text in texts)


def test_the_same_options_give_the_same_bytes_and_another_start_the_same_lines(tmp_path: Path) -> None:
    for name, start in (("a", "20200401/00"), ("b", "20200401/00"), ("c", "20210401/00")):
        assert call(tmp_path / name, "--hours", "2", "--rows", "100", "--start", start).exit_code == 0

    assert lines(tmp_path / "a") == lines(tmp_path / "b") == lines(tmp_path / "c")


def test_held_out_lines_share_the_truth_and_not_the_lines(tmp_path: Path) -> None:
    call(tmp_path / "train", "--hours", "1", "--rows", "3000", "--seed", "1")
    call(tmp_path / "held-out", "--hours", "1", "--rows", "3000", "--seed", "2", "--truth-seed", "1")
    call(tmp_path / "other", "--hours", "1", "--rows", "3000", "--seed", "2")

    features = [
        {token for line in lines(tmp_path / name) for token in line.split()[2:]}
        for name in ("train", "held-out", "other")
    ]
    assert len(features[0] & features[1]) > 0.5 * len(features[1])
    assert not features[0] & features[2]
    assert lines(tmp_path / "train") != lines(tmp_path / "held-out")


@pytest.mark.parametrize(("preset", "keys"), [("easy", 1000), ("sparse", 100_000)])
def test_the_summary_tells_what_the_truth_itself_would_reach(tmp_path: Path, preset: str, keys: int) -> None:
    done = call(tmp_path / "out", "--hours", "1", "--rows", "20000", "--preset", preset, "--json")

    summary = json.loads(done.stdout)
    assert summary["clicks"] == sum(line.startswith(b"1 1 ") for line in lines(tmp_path / "out"))
    assert 0.75 < summary["auc"] < 0.9
    assert summary["logloss"] < summary["loglossOfTheRate"]
    tokens = {token for line in lines(tmp_path / "out") for token in line.split()[2:]}
    assert len(tokens) <= 8 * keys
    assert (len(tokens) > 8 * 1000) == (preset == "sparse")


def test_a_folder_that_is_not_empty_and_a_bad_hour_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert "is not empty" in call(tmp_path, "--hours", "1", "--rows", "1").stderr
    refused = call(tmp_path / "new", "--hours", "1", "--rows", "1", "--start", "tomorrow")
    assert refused.exit_code == 1
    assert "'tomorrow' is not an hour" in refused.stderr


def test_one_line_has_no_auc(tmp_path: Path) -> None:
    done = call(tmp_path / "out", "--hours", "1", "--rows", "1", "--json")

    assert json.loads(done.stdout)["auc"] is None


@pytest.mark.parametrize("preset", ["pairwise", "third-order", "sequence", "numeric"])
def test_the_values_file_of_a_preset_trains_its_lines(tmp_path: Path, preset: str) -> None:
    done = call(tmp_path / "out", "--hours", "1", "--rows", "20000", "--preset", preset, "--json")

    assert done.exit_code == 0, done.output
    summary = json.loads(done.stdout)
    assert 0.7 < summary["auc"] < 0.9
    values = load_values([tmp_path / "out" / "values.yaml"], None)
    given = input_of(values.data, values.features)
    assert (len(given.slots), len(given.numbers)) == {"sequence": (5, 0), "numeric": (3, 13)}.get(preset, (8, 0))
    written = lines(tmp_path / "out")
    assert len(written) == 20000 + (2 if preset == "numeric" else 0)  # a header for each file
