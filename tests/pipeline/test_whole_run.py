"""From hours of clicks to predictions, through every process there is."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.operate.local.endpoints import predict
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions.published_files import published_versions, read_version
from elastic_ctr.training.model.evaluation import quality_of_scores, weighted_auc
from pipeline.running import SHARED, TWO_SHARDS, Run, values_for

COMMAND = str(Path(sys.executable).parent / "elastic-ctr")
ELASTICCTR = SHARED / "data" / "elasticctr"


def hour(folder: Path, split: str, lines: bytes) -> None:
    """One complete hour."""
    target = folder / split
    target.mkdir(parents=True)
    (target / "part-00000").write_bytes(lines)
    (target / "donefile").touch()


@pytest.mark.skipif(not ELASTICCTR.exists(), reason="needs the public click logs: put them into ../shared/data")
def test_the_sources_own_lines_train_publish_and_predict_with_every_key_exact(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    raw = (ELASTICCTR / "data.txt").read_bytes()
    hour(tmp_path / "data", "20200401/00", raw)
    slots = (ELASTICCTR / "slot.conf").read_text()
    listed = slots.split()
    values = values_for(
        tmp_path / "data", listed, "20200401/00", "20200401/00",
        trainer={"replicas": 1}, pserver={"replicas": 1}, cube=TWO_SHARDS,
    )  # fmt: skip

    run = start(values)
    report = run.finish()

    tokens = {word.partition(":")[0] for line in raw.decode().splitlines() for word in line.split()[2:]}
    store = open_store(run.places.store)
    [version] = published_versions(store)
    keys: set[int] = set()
    for entry in read_version(store, version).cube_files:
        file = store.local_path(entry.path)
        assert file is not None
        with closing(SequenceFileReader(file)) as blocks:
            for block, _ in blocks:
                keys.update(block.tolist())
    assert keys == {int(token) for token in tokens}
    assert max(keys) >= 2**63
    assert report["ledger"] == {
        "files": 1, "records": 100, "trained": 100, "refused": 0, "parked": 0, "repeated": 0, "heldOut": 0, "rolledBack": 0,
    }  # fmt: skip
    assert report["parity"]["samples"] == 100
    assert report["parity"]["maxAbsDiff"] <= 1e-5

    asked = subprocess.run(
        [COMMAND, "predict", str(ELASTICCTR / "data.txt"), "--address", run.places.serving],
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    assert len(asked.stdout.splitlines()) == 100
    assert "AUC" in asked.stderr


def synthetic(folder: Path, hours: int, rows: int) -> list[str]:
    """Synthetic clicks from the command that users have; the slots."""
    subprocess.run(
        [COMMAND, "synth", "--hours", str(hours), "--rows", str(rows), "--seed", "7", str(folder)],
        check=True, capture_output=True, timeout=120,
    )  # fmt: skip
    return (folder / "slot.conf").read_text().split()


def test_each_hour_becomes_a_version_that_answers_what_was_trained_and_refused_lines_are_kept_apart(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    slots = synthetic(tmp_path / "data", 3, 60_000)
    bad = [
        b"x 0 1:0", b"1 -1 1:0", b"1 2 1:0", b"1 0 17", b"1 0 18446744073709551616:0", b"", b"\x00\x01\xff garbage",
        b"0 0 1:0", b"1 0 " + b"7" * (10 << 20) + b":0",
    ]  # fmt: skip
    part = tmp_path / "data" / "20200401" / "01" / "part-00000"
    good = part.read_bytes().splitlines()
    part.write_bytes(b"\n".join(good[:1000] + bad + good[1000:]) + b"\n")

    values = values_for(tmp_path / "data", slots, "20200401/00", "20200401/02", cube=TWO_SHARDS)
    values["data"]["group"] = slots[0]
    values["serving"]["config"]["workers"] = 2
    run = start(values)
    report = run.finish()

    kinds = [each["kind"] for each in report["passes"]]
    assert kinds == ["base", "delta", "delta"]
    assert [each["records"] for each in report["passes"]] == [20_000] * 3
    assert report["live"] == report["passes"][-1]["version"]
    assert report["parity"]["maxAbsDiff"] <= 1e-5
    for each in report["passes"]:
        if each["aucServed"] is not None:
            # Scores that differ by less than their own rounding may change places; one pair of 512 samples is 1.3e-5.
            assert each["aucServed"] == pytest.approx(each["aucPublished"], abs=1e-4)
    # What was learned from one hour helps with the next.
    assert report["passes"][2]["aucBefore"] > report["passes"][1]["aucBefore"] > 0.52
    assert report["ledger"]["records"] == 60_000 + len(bad)
    assert report["ledger"]["trained"] == 60_000
    assert report["ledger"]["refused"] == len(bad)
    quarantined = [
        json.loads(line)["reason"]
        for file in (run.places.folder / "store" / "quarantine").rglob("*.jsonl")
        for line in file.read_text().splitlines()
    ]
    assert len(quarantined) == len(bad)
    assert {
        "not_a_number",
        "negative",
        "click_above_show",
        "no_colon",
        "feasign_too_large",
        "empty",
        "too_long",
    } <= set(quarantined)
    the_quality_is_that_of_served_predictions(run, report, tmp_path / "data" / "20200401" / "02", slots[0])
    an_explanation_takes_features_out(run, tmp_path / "data" / "20200401" / "02")


def the_quality_is_that_of_served_predictions(run: Run, report: dict[str, Any], hour: Path, group: str) -> None:
    """Trainers predicted the last hour with the values that the live version has."""
    split = [line.split(maxsplit=2) for part in sorted(hour.glob("part-*")) for line in part.read_text().splitlines()]
    shows, clicks, lines = ([each[place] for each in split] for place in range(3))
    probabilities, versions = predict(run.places.serving, "ctr", lines)
    assert set(versions) == {report["live"]}

    exact = quality_of_scores(probabilities, np.array(clicks, float), np.array(shows, float))

    after = report["passes"][-1]["quality"]["after"]
    assert exact is not None
    assert (after["shows"], after["clicks"]) == (exact.shows, exact.clicks)
    assert after["auc"] == pytest.approx(exact.auc, abs=1e-3)
    assert after["logloss"] == pytest.approx(exact.logloss, abs=1 / 256)
    assert after["calibration"] == pytest.approx(exact.calibration, rel=0.004)
    assert after["mae"] == pytest.approx(exact.mae, abs=1e-3)
    gauc, groups = gauc_of(lines, probabilities, np.array(clicks, float), np.array(shows, float), group)
    assert (after["gauc"], after["groups"]) == (pytest.approx(gauc, abs=2e-3), groups)
    curves = report["curves"][-1]["after"]
    assert [each["observedCtr"] for each in curves["deciles"]] == pytest.approx(
        [each.observed_ctr for each in exact.deciles], abs=0.01
    )
    assert curves["roc"] == pytest.approx(exact.roc, abs=0.01)
    manifest = read_version(open_store(run.places.store), report["live"])
    assert manifest.quality is not None
    assert manifest.quality.after is not None
    assert manifest.quality.after.auc == after["auc"]


def gauc_of(lines: list[str], probabilities: Any, clicks: Any, shows: Any, slot: str) -> tuple[float, int]:
    """Of the groups by the first key of a slot, one after the other."""
    first = [
        next((key for key, _, of in (each.partition(":") for each in line.split()) if of == slot), "") for line in lines
    ]
    keys, scores = np.array(first), np.array(probabilities)
    found = []
    for key in set(first) - {""}:
        mine = keys == key
        auc = weighted_auc(scores[mine], clicks[mine], shows[mine])
        if auc is not None:
            found.append((auc, shows[mine].sum()))
    aucs, weights = zip(*found, strict=True)
    return float(np.average(aucs, weights=weights)), len(found)


def an_explanation_takes_features_out(run: Run, hour: Path) -> None:
    line = (hour / "part-00000").read_text().splitlines()[0].split(maxsplit=2)[2]
    features = line.split()
    done = subprocess.run(
        [COMMAND, "explain", f"{line} 424242:{features[0].split(':')[1]}", "--address", run.places.serving, "--json"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    found = json.loads(done.stdout)

    keys = {each["key"]: each["known"] for feature in found["features"] for each in feature["keys"]}
    assert keys == {**dict.fromkeys((each.split(":")[0] for each in features), True), "424242": False}
    without = [
        " ".join(each for each in features if each.split(":")[1] != feature["feature"]) for feature in found["features"]
    ]
    # An unknown key adds zeros.
    probabilities, _ = predict(run.places.serving, "ctr", [line, *without])
    assert found["probability"] == pytest.approx(probabilities[0], abs=1e-6)
    assert [each["without"] for each in found["features"]] == pytest.approx(probabilities[1:], abs=1e-6)
    assert found["features"][0]["contribution"] != 0
