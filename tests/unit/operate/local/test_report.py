import io
import json
import re
from typing import Any

import pytest
from rich.console import Console

from elastic_ctr.operate.fitted_text import FittedTable
from elastic_ctr.operate.local.processes import Restart
from elastic_ctr.operate.local.report import SampleResult, build, learned, table
from elastic_ctr.operate.text_table import number
from elastic_ctr.runtime.status.master_status import TrainingStatus


def a_pass(name: str, **given: Any) -> dict[str, Any]:
    return {
        "pass": name,
        "ordinal": 1,
        "state": "done",
        "records": 1000,
        "refused": 1,
        "repeated": 0,
        "aucBefore": None,
        "auc": 0.75,
        "quality": {"before": {"logloss": 0.61, "calibration": None}, "after": None},
        "learning": {"epochs": 2, "batchSizes": [16, 64], "heldOut": 0, "losses": [0.69], "shift": -0.25},
        "table": None,
        "version": 7,
        "kind": "base",
        "keys": 1234,
        "trainedAt": 100.0,
        **given,
    }


def status(*passes: dict[str, Any], **given: Any) -> TrainingStatus:
    return TrainingStatus.model_validate({"passes": passes, "offset": -2.0, "ledger": {"records": 1001}, **given})


SEEN = {7: SampleResult(live_at=103.25, samples=512, max_abs_diff=1e-6, auc=0.7, auc_published=0.71)}


def test_a_pass_has_its_version_and_the_seconds_until_it_was_live() -> None:
    report = build(status(a_pass("20200401/00")), 7, SEEN, [])

    [one] = report["passes"]
    assert (one["version"], one["secondsToLive"], one["aucServed"], one["aucPublished"]) == (7, 3.25, 0.7, 0.71)
    assert report["live"] == 7
    assert report["parity"] == {"samples": 512, "maxAbsDiff": 1e-6}
    assert report["ledger"] == {"records": 1001}
    assert json.loads(json.dumps(report)) == report


def test_a_pass_without_a_version_or_one_that_never_went_live_has_none() -> None:
    report = build(status(a_pass("a", version=None, kind=None, keys=0), a_pass("b", version=8)), None, SEEN, [])

    assert [one["secondsToLive"] for one in report["passes"]] == [None, None]
    assert [one["aucServed"] for one in report["passes"]] == [None, None]


def test_how_each_pass_was_learned_is_in_it_and_the_last_one_is_said_in_a_line() -> None:
    held_out = {"epochs": 1, "batchSizes": [512], "heldOut": 1200, "losses": [0.69, 0.5], "shift": 0.0}
    both = status(a_pass("a"), a_pass("b", learning=held_out))
    report = build(both, None, {}, [])

    assert [one["learning"]["batchSizes"] for one in report["passes"]] == [[16, 64], [512]]
    assert report["offset"] == -2.0
    assert learned(status(a_pass("a"), a_pass("b", state="training", learning=held_out))) == (
        "pass a in 2 epochs of batches of 16, 64, logits shifted by -0.2500, the model's offset is -2.0000"
    )
    assert learned(both) == (
        "pass b in 1 epoch of batches of 512, 1,200 records held out, logits shifted by +0.0000, the model's offset is -2.0000"
    )


def test_of_a_master_of_an_earlier_release_it_is_not_said_how_a_pass_was_learned() -> None:
    passes = [{key: value for key, value in a_pass("a").items() if key != "learning"}]

    assert learned(status(*passes)) == learned(status()) == ""


def test_only_passes_that_are_done_are_in_it() -> None:
    report = build(status(a_pass("a"), a_pass("b", state="training")), None, {}, [])

    assert [one["pass"] for one in report["passes"]] == ["a"]
    assert report["parity"] == {"samples": 0, "maxAbsDiff": 0.0}


def test_the_quality_of_passes_and_the_versions_that_were_refused_are_in_it() -> None:
    versions = [
        {"id": 7, "pass": 1, "state": "refused", "reason": "AUC 0.5"},
        {"id": 8, "pass": 2, "state": "published"},
    ]
    curves = [{"pass": "a", "before": None, "after": None}]

    report = build(status(a_pass("a"), versions=versions, curves=curves), None, {}, [])

    assert report["passes"][0]["quality"]["before"] == {"logloss": 0.61, "calibration": None}
    assert report["curves"] == curves
    assert report["refused"] == [{"version": 7, "pass": "a", "reason": "AUC 0.5"}]


def test_recoveries_and_restarts_stand_in_the_order_of_time() -> None:
    recovery = {"role": "pserver", "at": 20.0, "seconds": 5.0, "reason": "gone", "rolled_back": 3}
    restarts = [
        Restart("serving", "ctr-serving-0", 30.0, "exit code 1"),
        Restart("pserver", "ctr-pserver-1", 10.0, "killed by SIGKILL", 0.5),
    ]

    report = build(status(recoveries=[recovery]), None, {}, restarts)

    assert report["recoveries"] == [
        {"role": "pserver", "at": 10.0, "seconds": 0.5, "reason": "ctr-pserver-1 killed by SIGKILL"},
        {"role": "pserver", "at": 20.0, "seconds": 5.0, "reason": "gone"},
        {"role": "serving", "at": 30.0, "seconds": None, "reason": "ctr-serving-0 exit code 1"},
    ]


def test_the_table_shows_the_same() -> None:
    two = status(a_pass("20200401/00"), a_pass("20200401/01", version=None, kind=None))
    out = io.StringIO()

    Console(file=out, width=200).print(FittedTable(table(two, SEEN), 0))

    lines = [line.split() for line in out.getvalue().splitlines()]
    first, second = (line for line in lines if line and line[0].startswith("2020"))
    assert first == [
        "20200401/00",
        "1,000",
        "1",
        "-",
        "0.7500",
        "0.6100",
        "-",
        "7",
        "base",
        "1,234",
        "3.2",
        "1.0e-06",
        "of",
        "512",
    ]
    assert second[7:9] == ["-", "-"]
    assert "AUC served" not in out.getvalue()


@pytest.mark.parametrize(
    ("width", "names"),
    [
        (80, "pass, AUC after, version, seconds to live, largest difference"),
        (100, "pass, records, AUC before, AUC after, version, seconds to live, largest difference"),
        (
            130,
            "pass, records, refused, AUC before, AUC after, logloss before, version, seconds to live, largest difference",
        ),
    ],
)
def test_a_narrow_terminal_shows_the_difference_from_serving_and_the_seconds_to_live(width: int, names: str) -> None:
    out = io.StringIO()

    Console(file=out, width=width).print(
        FittedTable(table(status(a_pass("20200401/00", version=1795252709)), {1795252709: SEEN[7]}), 0)
    )

    assert re.split(r"  +", out.getvalue().splitlines()[0].strip()) == names.split(", ")


def test_a_number_that_is_not_there_is_a_dash() -> None:
    assert (number(None), number(0.123456)) == ("-", "0.1235")
