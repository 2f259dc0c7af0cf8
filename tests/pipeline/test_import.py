"""Click logs of other systems, from their files to predictions."""

import csv
import json
import subprocess
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.config.load import read_yaml
from elastic_ctr.formats.imports.importers import feasign_of
from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.operate.cli.given_values import load_values
from elastic_ctr.operate.local.endpoints import predict, predict_rows
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions.published_files import published_versions, read_version
from pipeline.running import SHARED, Run, values_for
from pipeline.test_whole_run import COMMAND

TALKINGDATA = SHARED / "data" / "talkingdata" / "train_sample.csv"
AVAZU = SHARED / "data" / "avazu" / "small3.train.csv"
CRITEO = SHARED / "data" / "criteo" / "train.csv"
SPARSE_DIM = 10_007


def absent(file: Path) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not file.exists(), reason="needs the public click logs: put them into ../shared/data")


def imported(*arguments: str | Path) -> dict[str, Any]:
    done = subprocess.run(
        [COMMAND, "import", *map(str, arguments), "--json"], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def lines_of(folder: Path) -> list[bytes]:
    return [line for part in sorted(folder.glob("2*/*/part-*")) for line in part.read_bytes().splitlines(keepends=True)]


def first_hours(source: Path, target: Path, hours: int) -> Counter[str]:
    """The rows of the first hours, as they stand in the file; how many each hour has."""
    with source.open(newline="") as given:
        rows = list(csv.reader(given))
    header, rows = rows[0], rows[1:]
    time = header.index("click_time")
    taken = sorted({row[time][:13] for row in rows})[:hours]
    kept = [row for row in rows if row[time][:13] in taken]
    with target.open("w", newline="") as out:
        csv.writer(out, lineterminator="\n").writerows([header, *kept])
    return Counter(row[time][:13] for row in kept)


def as_lines(source: Path, target: Path, slots: list[str]) -> tuple[str, str]:
    """The rows as lines of feasigns, in hours with donefiles; the first and the last hour."""
    lines: dict[str, list[str]] = defaultdict(list)
    with source.open(newline="") as given:
        for row in csv.DictReader(given):
            features = " ".join(f"{feasign_of(slot, row[slot])}:{slot}" for slot in slots)
            hour = row["click_time"][:13].replace("-", "").replace(" ", "/")
            lines[hour].append(f"1 {row['is_attributed']} {features}\n")
    for hour, found in lines.items():
        (target / hour).mkdir(parents=True)
        (target / hour / "part-00000").write_text("".join(found))
        (target / hour / "donefile").touch()
    return min(lines), max(lines)


def each_hour_is_a_version(report: dict[str, Any], counted: Counter[str]) -> None:
    """Assert that, and that the ledger has every row of these hours."""
    passes = [(each["pass"], each["records"]) for each in report["passes"]]
    assert passes == [(f"{hour[:4]}{hour[5:7]}{hour[8:10]}/{hour[11:]}", n) for hour, n in sorted(counted.items())]
    assert [each["kind"] for each in report["passes"]] == ["base", "delta", "delta", "delta"]
    assert report["live"] == report["passes"][-1]["version"]
    ledger = report["ledger"]
    assert ledger["records"] == ledger["trained"] == sum(counted.values())
    assert ledger["refused"] == ledger["parked"] == 0


# test_readme.py goes the same way with rows of its own.
@pytest.mark.nightly
@absent(TALKINGDATA)
@pytest.mark.timeout(240)
def test_the_raw_csv_of_a_click_log_becomes_a_version_each_hour(tmp_path: Path, start: Callable[..., Run]) -> None:
    counted = first_hours(TALKINGDATA, tmp_path / "clicks.csv", 4)
    data = tmp_path / "data"
    label = ("--label", "is_attributed", "--time", "click_time", "--except", "attributed_time")
    imported("csv", tmp_path / "clicks.csv", data, *label)
    written = read_yaml(data / "values.yaml")

    given = written["data"]
    columns = {name: given[name] for name in ("format", "label")}
    alone = {"replicas": 1}
    run = start(
        values_for(
            data,
            None,
            given["start"],
            given["end"],
            data=columns,
            features=written["features"],
            trainer=alone,
            pserver=alone,
        )
    )
    report = run.finish(200)

    each_hour_is_a_version(report, counted)
    assert report["parity"]["maxAbsDiff"] <= 1e-5
    assert set(written["features"]) == {"..ip", "app", "device", "os", "channel"}
    with (tmp_path / "clicks.csv").open(newline="") as given:
        rows = [{name: row[name] for name in written["features"]} for row in csv.DictReader(given)][-200:]
    probabilities, versions = predict_rows(run.places.serving, "ctr", rows)
    assert set(versions) == {report["live"]}
    assert len(set(probabilities)) > 100


# test_whole_run.py has a version of each hour and a ledger that adds up, tests/unit/training/trainer/test_converter.py keys modulo sparseDim.
@pytest.mark.nightly
@absent(TALKINGDATA)
@pytest.mark.timeout(240)
def test_each_hour_of_a_click_log_becomes_a_version_and_no_record_is_lost(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    counted = first_hours(TALKINGDATA, tmp_path / "clicks.csv", 4)
    data, slots = tmp_path / "data", ["app", "device", "os", "channel"]
    first, last = as_lines(tmp_path / "clicks.csv", data, slots)
    model = {"sparseDim": SPARSE_DIM}

    alone = {"replicas": 1}
    run = start(values_for(data, slots, first, last, model=model, trainer=alone, pserver=alone))
    report = run.finish(200)

    each_hour_is_a_version(report, counted)

    # Keys are taken modulo sparseDim by training and by serving alike.
    store = open_store(run.places.store)
    keys: set[int] = set()
    for version in published_versions(store):
        for entry in read_version(store, version).cube_files:
            file = store.local_path(entry.path)
            assert file is not None
            with closing(SequenceFileReader(file)) as blocks:
                for block, _ in blocks:
                    keys.update(block.tolist())
    feasigns = {int(word.partition(b":")[0]) for line in lines_of(data) for word in line.split()[2:]}
    assert keys == {feasign % SPARSE_DIM for feasign in feasigns} - {0}
    assert min(feasigns) > SPARSE_DIM
    assert report["parity"]["samples"] >= min(512, *counted.values())
    assert report["parity"]["maxAbsDiff"] <= 1e-5
    feasign = max(feasigns)
    [one, other], _ = predict(run.places.serving, "ctr", [f"{feasign}:app", f"{feasign % SPARSE_DIM}:app"])
    assert one == other


@absent(AVAZU)
def test_a_csv_with_crlf_is_imported_as_if_it_had_none(tmp_path: Path) -> None:
    fields = "C1,banner_pos,site_id,app_id,device_model,C21"
    unix = tmp_path / "unix.csv"
    unix.write_bytes(AVAZU.read_bytes().replace(b"\r\n", b"\n"))

    both = []
    for file, out in ((AVAZU, tmp_path / "crlf"), (unix, tmp_path / "lf")):
        summary = imported(
            "csv", file, out, "--label", "click", "--fields", fields, "--time", "hour", "--time-format", "%y%m%d%H"
        )
        both.append((summary, lines_of(out)))

    assert both[0] == both[1]
    summary, lines = both[0]
    assert (summary["rows"], summary["records"], summary["clicks"], summary["refused"]) == (9567, 9567, 1626, {})
    assert (summary["start"], summary["end"], summary["features"]) == ("20141021/00", "20141021/00", 6)
    header, *rows = csv.reader(line.decode() for line in lines)
    assert sum(row[header.index("click")] == "1" for row in rows) == 1626


@absent(CRITEO)
def test_criteos_own_rows_are_hours_of_39_columns(tmp_path: Path) -> None:
    summary = imported("criteo", CRITEO, tmp_path / "hours", "--rows-per-hour", "2000")

    assert (summary["rows"], summary["records"], summary["clicks"], summary["refused"]) == (7200, 7200, 1549, {})
    assert (summary["start"], summary["end"], summary["features"]) == ("20200401/00", "20200401/03", 39)
    lines = lines_of(tmp_path / "hours")
    assert sorted(lines) == sorted(CRITEO.read_bytes().splitlines(keepends=True))
    assert load_values([tmp_path / "hours" / "values.yaml"], None).features
