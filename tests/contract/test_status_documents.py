"""Status documents of other releases: the command line of this one reads them, and `status --json` prints them unchanged."""

import json
from typing import Any

import pytest

from elastic_ctr.runtime.status.intake_status import IntakeStatus
from elastic_ctr.runtime.status.master_status import TrainingStatus
from elastic_ctr.runtime.status.serving_status import ServingStatus
from elastic_ctr.runtime.status.status_document import StatusDocument
from elastic_ctr.runtime.status.transfer_status import ReleaseStatus
from status_documents import unknown, written_alike

# As the roles of earlier releases answered: without startedFrom, hold, learning, table, canary, clickFreshness and late clicks.
MASTER = {
    "ready": True, "pservers": [{"index": 0, "serving": True, "error": ""}], "handover": None,
    "trainers": [{"id": 3, "name": "ctr-trainer-0"}], "generation": 2, "finished": False, "baseDue": "", "offset": -2.2,
    "current": {"pass": "20200401/01", "state": "stopped", "epoch": 1, "reason": "7 of 9 lines are refused"},
    "passes": [
        {
            "pass": "20200401/00", "ordinal": 1, "state": "done", "epoch": 1, "reason": "", "records": 90, "refused": 2,
            "ignored": 0, "padding": 0, "repeated": 0, "tasks": 2, "parked": 0, "tasksDone": 2, "aucBefore": None, "auc": 0.71,
            "trainedAt": 100.5, "doneAt": 101.5, "seconds": {"train": 1.5}, "version": 1795252709, "kind": "base", "keys": 12,
        }
    ],
    "versions": [
        {"id": 1795252709, "kind": "base", "base": 1795252709, "parent": None, "pass": 1, "state": "published", "keys": 12, "at": 102.5}
    ],
    "ledger": {"files": 2, "trained": 90, "refused": 2, "parked": 0, "repeated": 0, "records": 92, "rolledBack": 0},
    "recoveries": [{"role": "trainer", "reason": "it is silent", "at": 99.5, "seconds": None, "rolled_back": 7}],
    "waitsFor": "", "error": "",
}  # fmt: skip
TRANSFER = {
    "role": "cube-transfer", "listening": False, "generation": 1, "revision": 9, "live": 1795252709, "previous": None,
    "promotionPaused": False, "candidate": {"version": 1795252716, "waitsFor": ["no answer yet from serving pods a"]},
    "published": [1795252709, 1795252716], "built": [1795252709], "building": None, "skipped": [], "abandoned": [],
    "refused": {"1795252700": "a part is damaged"}, "problems": [],
    "shards": [{"shard": 0, "pods": [{"pod": "c-s0-0", "draining": False, "errors": [], "loaded": {"1795252709": 6}}]}],
    "readers": [{"pod": "r", "validated": [1795252709], "refused": {}, "pinned": [], "maxAbsDiff": {"1795252709": 1e-7}}],
    "eventTimeMax": 1585706400, "freshnessSeconds": 600.5, "versions": {"1795252709": {"secondsToLive": 7.5}},
}  # fmt: skip
SERVING = {
    "ready": True, "stage": "version 7 is live and answered with", "version": 7, "live": 7, "candidate": None,
    "lastRefusal": None, "transfer": {"url": "http://t:8300", "error": None}, "requests": 5, "rows": 20,
    "p50Seconds": 0.005, "p99Seconds": None, "workers": [{"pid": 9, "version": 7}], "workerRestarts": 0, "address": "h:8400",
}  # fmt: skip
INTAKE = {
    "role": "intake", "partition": "clicks-1", "first": 0, "end": 7, "neededFrom": 3, "bytes": 4096,
    "accepted": {"requests": 2, "records": 7, "bytes": 90}, "damaged": [{"first": 1, "end": 2}], "error": None,
}  # fmt: skip
OF_EARLIER_RELEASES: list[tuple[type[StatusDocument], dict[str, Any]]] = [
    (TrainingStatus, MASTER), (ReleaseStatus, TRANSFER), (ServingStatus, SERVING), (IntakeStatus, INTAKE),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "answer"), OF_EARLIER_RELEASES)
def test_a_document_of_an_earlier_release_is_read_and_written_as_it_came(
    kind: type[StatusDocument], answer: dict[str, Any]
) -> None:
    assert unknown(written_alike(kind, json.dumps(answer))) == []


def test_fields_that_an_earlier_release_lacks_have_their_defaults() -> None:
    training = TrainingStatus.model_validate(MASTER)
    release, serving = ReleaseStatus.model_validate(TRANSFER), ServingStatus.model_validate(SERVING)

    [one] = training.passes
    assert (one.quality.moments[0].auc, one.learning.epochs, one.table, training.started_from) == (None, 0, None, None)
    assert (release.hold, release.seconds_to_live, serving.click_freshness, serving.canary) == (None, 7.5, None, None)


def test_keys_of_a_later_release_are_read_past_and_kept() -> None:
    later = {**MASTER, "passes": [{**each, "taste": 1} for each in MASTER["passes"]], "colour": {"of": "it"}}  # type: ignore[attr-defined]

    document = written_alike(TrainingStatus, json.dumps(later))

    assert unknown(document) == ["colour", "taste"]
    assert document.ledger.trained == 90


@pytest.mark.parametrize(
    "written", [{**SERVING, "rows": 20.0}, {**SERVING, "ready": 1}, dict(reversed(SERVING.items()))]
)
def test_a_value_that_is_written_with_another_type_or_in_another_place_is_noticed(written: dict[str, Any]) -> None:
    assert ServingStatus.model_validate(written).to_dict() == written

    with pytest.raises(AssertionError):
        written_alike(ServingStatus, json.dumps(written))
