"""Which folders `predict --output` writes to: none with results of another run, and none of its input."""

import shutil
from pathlib import Path

from contract import scoring_world, serving_world
from contract.scoring_world import HOURS, call, put_trained_version, rows_of, write_hours
from contract.serving_world import FIRST, SECOND, Exported
from elastic_ctr.store.backends import FileStore

# pytest finds fixtures by the names of a module.
exports, store, values = serving_world.exports, serving_world.store, scoring_world.values


def test_two_runs_are_not_mixed_in_one_folder(
    values: Path, store: FileStore, exports: dict[int, Exported], tmp_path: Path
) -> None:
    write_hours(tmp_path / "data", HOURS)
    assert call("predict", "-f", values, "-o", tmp_path / "out").returncode == 0
    put_trained_version(store, tmp_path / "work", exports[SECOND])
    before = {file: file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file()}

    other = call("predict", "-f", values, "-o", tmp_path / "out", "--version", SECOND)
    form = call("predict", "-f", values, "-o", tmp_path / "out", "--output-format", "parquet")
    same = call("predict", "-f", values, "-o", tmp_path / "out", "--version", FIRST)
    named = call("evaluate", "-f", values, "--version", 17)

    assert other.returncode == form.returncode == named.returncode == 2
    assert f"differs in --version: latest there, {SECOND} now; give another folder" in other.stderr
    assert "differs in --output-format: csv there, parquet now" in form.stderr
    assert same.returncode == 0, same.stderr
    assert {file: file.read_bytes() for file in before} == before
    assert f"version 17 is not in the store {store.url}; there are {FIRST}, {SECOND}" in named.stderr


def test_outputs_of_another_version_are_not_reported_as_those_of_this_one(
    values: Path, store: FileStore, exports: dict[int, Exported], tmp_path: Path
) -> None:
    write_hours(tmp_path / "data", {"20200401/00": 20}, files=1)
    out = tmp_path / "out"
    words = ("predict", "-f", values, "-o", out, "--to", "20200401/00", "--processes", 1)
    assert call(*words).returncode == 0
    first = (out / "20200401/00/part-0.csv").read_bytes()
    put_trained_version(store, tmp_path / "work", exports[SECOND])
    shutil.rmtree(out / "_job")
    (out / "_SUCCESS").unlink()

    refused = call(*words)
    (out / "20200401/00/part-0.csv").unlink()
    again = call(*words)

    assert refused.returncode == 2, refused.stderr
    assert f"20200401/00/part-0.csv is in {out.as_uri()} already" in refused.stderr
    assert "give another folder, or delete this one" in refused.stderr
    assert again.returncode == 0, again.stderr
    assert (out / "20200401/00/part-0.csv").read_bytes() != first


def test_an_output_that_another_program_wrote_meanwhile_is_named_and_counts_for_nothing(
    values: Path, tmp_path: Path
) -> None:
    write_hours(tmp_path / "data", {"20200401/00": 20})
    out = tmp_path / "out"
    words = ("predict", "-f", values, "-o", out, "--to", "20200401/00", "--processes", 1)
    assert call(*words).returncode == 0
    mine, foreign = (out / f"20200401/00/part-{number}.csv" for number in range(2))
    # As a process leaves a task that is lost between its output and its result.
    for each in [*(out / "_job/done").iterdir(), out / "_SUCCESS"]:
        each.unlink()
    foreign.write_text("foreign\n")

    refused = call(*words)
    kept = mine.read_bytes(), foreign.read_text(), (out / "_SUCCESS").exists()
    foreign.unlink()
    again = call(*words)

    assert refused.returncode == 1, refused.stderr
    assert "20200401/00/part-1.csv in file://" in refused.stderr
    assert (
        f"its rows are not those of version {FIRST}; delete it, and the same command writes it anew" in refused.stderr
    )
    assert "1 of 2 tasks are not scored" in refused.stderr
    assert kept[1:] == ("foreign\n", False)
    assert again.returncode == 0, again.stderr
    assert mine.read_bytes() == kept[0]
    assert len(rows_of(foreign)) == 10

    # A finished job is looked at again: a file that was cut since is not reported as whole.
    mine.write_bytes(kept[0][:-20])
    mended = call(*words)

    assert mended.returncode == 0, mended.stderr
    assert "20200401/00/part-0.csv is not as it was written; it is scored again" in mended.stderr
    assert mine.read_bytes() == kept[0]
    assert (out / "_SUCCESS").exists()


def test_two_files_with_one_output_are_refused_before_anything_is_written(values: Path, tmp_path: Path) -> None:
    write_hours(tmp_path / "data", {"20200401/00": 400}, files=1)
    cut = tmp_path / "data/20200401/00/part-0"
    parts = -(-cut.stat().st_size // 5000)
    cut.with_name(f"part-0.00001-of-{parts:05d}").write_text("1 0 5:0\n")

    done = call("predict", "-f", values, "-o", tmp_path / "out", "--to", "20200401/00")

    assert done.returncode == 2, done.stderr
    assert f"would have the same output 20200401/00/part-0.00001-of-{parts:05d}.csv" in done.stderr
    assert not (tmp_path / "out").exists()


def test_nothing_is_written_among_the_hours(values: Path, tmp_path: Path) -> None:
    write_hours(tmp_path / "data", {"20200401/00": 20})
    before = sorted((tmp_path / "data").rglob("*"))

    refused = [
        call("predict", "-f", values, "-o", tmp_path / out) for out in ("data", "data/20200401/00", "data/scores")
    ]

    assert [each.returncode for each in refused] == [2, 2, 2]
    for each in refused:
        assert "a training would read the output as its input; give a folder that neither holds" in each.stderr
    assert sorted((tmp_path / "data").rglob("*")) == before
