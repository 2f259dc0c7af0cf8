"""Hours scored with a version in a store: networks that Paddle exported, parts that cube's builder made, real processes."""

import gzip
import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest

from contract import scoring_world, serving_world
from contract.scoring_world import (
    HOURS,
    call,
    command,
    of_all_tasks,
    put_trained_version,
    rows_of,
    write_hours,
    write_values,
)
from contract.serving_world import FIRST, SECOND, Cube, Exported, Transfer, put_version, serving
from elastic_ctr.config.cube_settings import CubeTransferConfig
from elastic_ctr.config.role_files import CubeBuilderFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.cube.builder.build_server import CubeBuilder
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.training.model.evaluation import weighted_auc, weighted_logloss

# pytest finds fixtures by the names of a module.
exports, started_cube, cube = serving_world.exports, serving_world.started_cube, serving_world.cube
store, transfer, scratch = serving_world.store, serving_world.transfer, serving_world.scratch
values = scoring_world.values

ROWS = 300_000


def built(store: FileStore, folder: Path, *versions: int) -> None:
    """As cube-builder does on transfer's order."""
    config = CubeBuilderFile(
        store=StoreConfig(url=store.url),
        cube_transfer=CubeTransferConfig(scratch_dir=str(folder / "builder"), builder_jobs=1, overlay_share=1.0),
    )
    builder = CubeBuilder(config)
    for version in versions:
        builder.build(version)


def test_each_row_of_the_input_gets_one_row_of_output_in_its_order(
    values: Path, exports: dict[int, Exported], tmp_path: Path
) -> None:
    written = write_hours(tmp_path / "data", HOURS, bad_each=50)

    done = call("predict", "-f", values, "--output", tmp_path / "out", "--processes", 2, "--json")

    assert done.returncode == 1, done.stderr  # 2 % of the lines are bad, and a training takes 1 %
    assert "20 of 1,000 rows were refused: not_a_number 20 (such as feasign 'notanumber'" in done.stderr
    for name, lines in written.items():
        rows = of_all_tasks(tmp_path / "out", name)
        assert len(rows) == len(lines)
        for row, features in zip(rows, lines, strict=True):
            if features is None:
                assert (row["probability"], row["show"], row["click"]) == ("", "", "")
                assert "is not a decimal number" in row["reason"]
            else:
                assert row["reason"] == ""
                assert float(row["probability"]) == pytest.approx(exports[FIRST].probability(features), abs=1e-5)
    assert len(list((tmp_path / "out").rglob("part-0.00002-of-*.csv"))) == 2
    assert (tmp_path / "out/_SUCCESS").exists()
    assert not list((tmp_path / "out").rglob(".part-*"))
    total = json.loads(done.stdout)["total"]
    assert (total["rows"], total["refused"], total["refusedByReason"]) == (1000, 20, {"not_a_number": 20})


async def test_scores_are_the_answers_of_serving(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    written = write_hours(tmp_path / "data", {"20200401/00": 1000}, files=1)
    [lines] = written.values()
    async with serving(store, transfer, scratch) as running:
        await running.until_version(FIRST)
        answer = await running.lines(lines)
    served = answer.json()["outputs"][0]["data"]
    models = FileStore(tmp_path / "models")
    put_trained_version(models, tmp_path / "work", exports[FIRST])
    values = write_values(tmp_path, tmp_path / "data", models, end="20200401/00")

    done = call("predict", "-f", values, "-o", tmp_path / "out", "--output-format", "parquet")

    assert done.returncode == 0, done.stderr
    scored = pq.read_table(tmp_path / "out/20200401/00/part-0.parquet")
    assert scored.column_names == ["probability", "show", "click", "reason"]
    assert len(scored) == len(served) == 1000
    assert np.abs(scored["probability"].to_numpy() - np.array(served)).max() < 1e-6
    assert np.ptp(served) > 0.5


def test_an_evaluation_has_the_quality_of_the_scores(
    values: Path, exports: dict[int, Exported], tmp_path: Path
) -> None:
    write_hours(tmp_path / "data", HOURS)
    assert call("predict", "-f", values, "--output", tmp_path / "out").returncode == 0

    done = call("evaluate", "-f", values, "--version", FIRST, "--json")
    table = call("evaluate", "-f", values, "--from", "20200401/01")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["version"] == FIRST
    for split, measured in (*found["splits"].items(), ("", found["total"])):
        rows = [
            row for file in sorted((tmp_path / "out").rglob("*.csv")) if split in str(file) for row in rows_of(file)
        ]
        p, click, show = (np.array([float(row[name]) for row in rows]) for name in ("probability", "click", "show"))
        assert measured["rows"] == len(rows) == HOURS.get(split, 1000)
        assert measured["auc"] == pytest.approx(weighted_auc(p, click, show), abs=1e-3)
        assert measured["logloss"] == pytest.approx(weighted_logloss(p, click, show), rel=1e-6)
        assert measured["calibration"] == pytest.approx(p @ show / click.sum(), rel=1e-6)
        assert measured["rmse"] == pytest.approx(
            np.sqrt((click @ (1 - p) ** 2 + (show - click) @ p**2) / show.sum()), rel=1e-6
        )
    assert "20200401/01" in table.stdout
    assert "20200401/00" not in table.stdout


@pytest.mark.parametrize("by_cube", [True, False], ids=["built by cube", "built here"])
def test_a_delta_is_scored_over_its_base(
    by_cube: bool, values: Path, store: FileStore, exports: dict[int, Exported], tmp_path: Path
) -> None:
    """The delta has the second export's network, and its vectors for a third of the keys."""
    base, second = exports[FIRST], exports[SECOND]
    changed = second.keys % np.uint64(3) == 0
    delta = second._replace(keys=second.keys[changed], values=second.values[changed])
    put_trained_version(store, tmp_path / "work", delta, base=FIRST, parent=FIRST)
    if by_cube:
        built(store, tmp_path, FIRST, SECOND)
    whole = second._replace(values=np.where(changed[:, None], second.values, base.values))
    written = write_hours(tmp_path / "data", HOURS)

    done = call("predict", "-f", values, "--output", tmp_path / "out")

    assert done.returncode == 0, done.stderr
    assert f"version {SECOND}:" in done.stderr
    assert store.exists(layout.dictionary_manifest(SECOND)) == by_cube
    for name, lines in written.items():
        for row, features in zip(of_all_tasks(tmp_path / "out", name), lines, strict=True):
            assert float(row["probability"]) == pytest.approx(whole.probability(features), abs=1e-5)


def test_files_of_this_machine_are_scored_too(values: Path, exports: dict[int, Exported], tmp_path: Path) -> None:
    (tmp_path / "data/a").mkdir(parents=True)
    (tmp_path / "data/a/one.txt").write_text("5:0 7:1\n\n9:2\n")
    (tmp_path / "data/two.txt").write_text("3:7\n")

    done = call(
        "predict",
        "-f",
        values,
        "--no-clicks",
        "-o",
        tmp_path / "out",
        tmp_path / "data/a/one.txt",
        tmp_path / "data/two.txt",
    )

    assert done.returncode == 0, done.stderr
    found = [float(row["probability"]) for row in rows_of(tmp_path / "out/a/one.txt.csv")]
    first = exports[FIRST]
    wanted = [first.probability(features) for features in ([(5, "0"), (7, "1")], [], [(9, "2")])]
    assert found == pytest.approx(wanted, abs=1e-5)
    [row] = rows_of(tmp_path / "out/two.txt.csv")
    assert list(row) == ["probability", "reason"]
    assert "4 rows with version" in done.stderr
    assert "AUC" not in done.stderr


def test_a_dump_shows_the_keys_and_the_values_that_the_network_got(
    values: Path, exports: dict[int, Exported], tmp_path: Path
) -> None:
    first = exports[FIRST]
    (tmp_path / "lines.txt").write_text("1 0 5:0 7:1 8:1 5:9\nbad\n2 1 500:0\n")

    done = call("predict", "-f", values, "-o", tmp_path / "out", "--dump", "keys,pooled", tmp_path / "lines.txt")

    assert done.returncode == 1, done.stderr  # a third of the lines is bad
    scored, refused, unknown = rows_of(tmp_path / "out/lines.txt.csv")
    assert [scored[f"keys.{slot}"] for slot in serving_world.SLOTS] == ["5", "7 8", "", ""]
    table = dict(zip(first.keys.tolist(), first.values, strict=True))
    for slot, keys in (("0", [5]), ("1", [7, 8])):
        got = np.array(scored[f"pooled.{slot}"].split(" "), np.float32)
        assert got == pytest.approx(np.sum([table[key] for key in keys], axis=0), abs=1e-6)
    assert set(scored["pooled.7"].split(" ")) == {"0"}
    assert {refused[name] for name in refused if name.startswith(("keys.", "pooled."))} == {""}
    assert (unknown["keys.0"], set(unknown["pooled.0"].split(" "))) == ("500", {"0"})


def numbered(data: Path, rows: int) -> None:
    """Lines whose shows are their numbers, so that each can be found again."""
    folder = data / "20200401/00"
    folder.mkdir(parents=True)
    for file in range(2):
        numbers = range(1 + file * rows // 2, 1 + (file + 1) * rows // 2)
        lines = (f"{number} 0 {number % 500}:0 {number % 300}:7\n" for number in numbers)
        (folder / f"part-{file}").write_text("".join(lines))
    (folder / "donefile").touch()


class Going:
    """A command under way."""

    def __init__(self, out: Path, *words: object) -> None:
        self._out = out
        self._process = subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True)

    def until_done(self, tasks: int) -> None:
        until = time.monotonic() + 200
        while len(list((self._out / "_job/done").glob("*"))) < tasks:
            assert self._process.poll() is None, self._process.stderr.read() if self._process.stderr else ""
            assert time.monotonic() < until
            time.sleep(0.01)

    def scoring(self) -> list[psutil.Process]:
        """Its processes that score."""
        below = psutil.Process(self._process.pid).children(recursive=True)
        return [each for each in below if "spawn_main" in " ".join(each.cmdline())]

    def signal(self, signum: signal.Signals) -> None:
        self._process.send_signal(signum)

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()

    def end(self) -> tuple[int, str]:
        _, said = self._process.communicate(timeout=200)
        return self._process.returncode, said


def test_after_kills_in_the_middle_all_rows_are_there_once_each_in_their_order(values: Path, tmp_path: Path) -> None:
    numbered(tmp_path / "data", ROWS)
    values = write_values(
        tmp_path, tmp_path / "data", FileStore(tmp_path / "store"), end="20200401/00", taskBytes=120_000
    )
    out = tmp_path / "out"
    words = ("predict", "-f", values, "-o", out, "--processes", 2)

    first = Going(out, *words)
    first.until_done(5)
    first.kill()
    second = Going(out, *words)
    second.until_done(15)
    second.scoring()[0].send_signal(signal.SIGKILL)
    second.until_done(25)
    second.kill()
    third = Going(out, *words)
    code, said = third.end()

    assert code == 0, said
    assert "which was the latest one when this output was begun" in said
    shows = [int(row["show"]) for file in range(2) for row in of_all_tasks(out, f"20200401/00/part-{file}")]
    assert shows == list(range(1, ROWS + 1))
    assert not list(out.rglob(".part-*"))
    again = call(*words)
    assert (again.returncode, f"{ROWS:,} rows with version" in again.stderr) == (0, True)


def test_a_process_that_is_lost_is_replaced(values: Path, tmp_path: Path) -> None:
    numbered(tmp_path / "data", 100_000)
    values = write_values(
        tmp_path, tmp_path / "data", FileStore(tmp_path / "store"), end="20200401/00", taskBytes=50_000
    )
    going = Going(tmp_path / "out", "predict", "-f", values, "-o", tmp_path / "out", "--processes", 1)
    going.until_done(2)

    going.scoring()[0].send_signal(signal.SIGKILL)
    code, said = going.end()

    assert code == 0, said
    assert "a process that scored has ended, and those beside it with it; new ones take their place" in said


@pytest.mark.parametrize(
    ("signum", "code", "told"),
    [
        (signal.SIGINT, 130, "stopped; what is done is kept, and the same command goes on"),
        (signal.SIGTERM, 143, ""),
    ],
)
def test_a_command_that_a_signal_ends_leaves_no_process_and_no_scratch(
    signum: signal.Signals, code: int, told: str, values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    numbered(tmp_path / "data", 200_000)
    values = write_values(
        tmp_path, tmp_path / "data", FileStore(tmp_path / "store"), end="20200401/00", taskBytes=50_000
    )
    going = Going(tmp_path / "out", "predict", "-f", values, "-o", tmp_path / "out", "--processes", 2)
    going.until_done(2)
    scoring = going.scoring()

    going.signal(signum)
    ended, said = going.end()

    assert (ended, len(scoring)) == (code, 2), said
    assert told in said
    assert "Traceback" not in said
    assert psutil.wait_procs(scoring, 20)[1] == []
    assert list((tmp_path / "scratch").iterdir()) == []
    assert not (tmp_path / "out/_SUCCESS").exists()


def test_a_damaged_dictionary_part_is_named(values: Path, store: FileStore, tmp_path: Path) -> None:
    write_hours(tmp_path / "data", HOURS)
    built(store, tmp_path, FIRST)
    damaged = store.root / layout.dictionary_part(FIRST, 3)
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"\xff")

    done = call("evaluate", "-f", values)

    assert done.returncode == 1
    assert "part-00003.dict" in done.stderr
    assert "is not what its manifest says" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_part_of_the_version_is_named(values: Path, store: FileStore, tmp_path: Path) -> None:
    write_hours(tmp_path / "data", HOURS)
    damaged = store.root / layout.cube_file(FIRST, "base", 3, serving_world.PARTITIONS)
    damaged.write_bytes(damaged.read_bytes()[:-40])

    done = call("predict", "-f", values, "-o", tmp_path / "out")

    assert done.returncode == 1
    assert "feature-00003-of-00006.seq" in done.stderr
    assert "is not what its manifest says" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_cannot_be_read_costs_no_other_and_is_scored_once_it_is_mended(
    values: Path, tmp_path: Path
) -> None:
    write_hours(tmp_path / "data", HOURS)
    broken = tmp_path / "data/20200401/00/part-x.gz"
    whole = gzip.compress(b"1 0 5:0\n" * 2000)
    broken.write_bytes(whole[:-9] + b"\xff" * 9)

    done = call("predict", "-f", values, "-o", tmp_path / "out")

    assert done.returncode == 1
    assert "part-x.gz is damaged or cut off" in done.stderr
    assert "1 of 11 tasks are not scored; once the cause is mended, the same command goes on" in done.stderr
    assert not (tmp_path / "out/_SUCCESS").exists()
    assert len(of_all_tasks(tmp_path / "out", "20200401/01/part-1")) == 200

    broken.write_bytes(whole)
    again = call("predict", "-f", values, "-o", tmp_path / "out")

    assert again.returncode == 0, again.stderr
    assert len(rows_of(tmp_path / "out/20200401/00/part-x.gz.csv")) == 2000


def test_a_job_of_a_deleted_version_is_reported_if_it_is_done_and_refused_if_tasks_are_left(
    values: Path, store: FileStore, exports: dict[int, Exported], tmp_path: Path
) -> None:
    write_hours(tmp_path / "data", {"20200401/00": 20})
    out = tmp_path / "out"
    words = ("predict", "-f", values, "-o", out, "--to", "20200401/00", "--processes", 1)
    assert call(*words).returncode == 0
    # As retention does, once there is a newer version.
    put_trained_version(store, tmp_path / "work", exports[SECOND])
    store.delete(layout.version_manifest(FIRST))

    whole = call(*words)
    (out / "_job/done/0.json").unlink()
    half = call(*words)

    assert whole.returncode == 0, whole.stderr
    assert f"20 rows with version {FIRST}" in whole.stderr
    assert half.returncode == 2
    assert f"version {FIRST}, which {out.as_uri()} was begun with, is no longer in the store" in half.stderr
    assert "1 of 2 tasks are not scored; give another folder, or delete this one" in half.stderr


def test_the_dictionary_that_a_killed_command_leaves_goes_with_the_next_one(values: Path, tmp_path: Path) -> None:
    numbered(tmp_path / "data", 200_000)
    values = write_values(
        tmp_path, tmp_path / "data", FileStore(tmp_path / "store"), end="20200401/00", taskBytes=50_000
    )
    scratch = tmp_path / "tmp"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch)}
    out = tmp_path / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(scratch))
        going = Going(out, "predict", "-f", values, "-o", out, "--processes", 1)
        going.until_done(1)
        scoring = going.scoring()
        going.kill()
    assert psutil.wait_procs(scoring, 20)[1] == []
    assert list(scratch.rglob("*.dict")) != []

    next_one = command("evaluate", "-f", values, tmp_path / "data/20200401/00/part-0", "--version", FIRST)
    done = subprocess.run(next_one, env=environment, capture_output=True, text=True, check=False, timeout=240)

    assert done.returncode == 0, done.stderr
    assert list(scratch.iterdir()) == []


def test_a_full_disk_is_a_sentence_and_the_same_command_goes_on(values: Path, tmp_path: Path) -> None:
    write_hours(tmp_path / "data", HOURS)
    limited = [
        "sh",
        "-c",
        'trap "" XFSZ; ulimit -f 8; exec "$@"',
        "-",
        *command("predict", "-f", values, "-o", tmp_path / "out"),
    ]

    done = subprocess.run(limited, capture_output=True, text=True, check=False, timeout=240)
    again = call("predict", "-f", values, "-o", tmp_path / "out")

    assert done.returncode == 1, done.stderr
    assert "File too large" in done.stderr
    assert "Traceback" not in done.stderr
    assert again.returncode == 0, again.stderr
    assert len(of_all_tasks(tmp_path / "out", "20200401/00/part-0")) == 300
