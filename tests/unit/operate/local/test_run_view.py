from typing import Any

import pytest

from elastic_ctr.operate.local.run_view import stage
from elastic_ctr.operate.local.session import troubles
from elastic_ctr.runtime.status.master_status import TrainingStatus


def status(**given: Any) -> TrainingStatus:
    return TrainingStatus.model_validate(
        {
            "ready": True,
            "generation": 1,
            "pservers": [{"index": 0, "serving": True}, {"index": 1, "serving": False}],
            "trainers": [{"id": 1}],
            "passes": [],
            "ledger": {},
            **given,
        }
    )


def at(state: str, epoch: int = 1, **given: Any) -> TrainingStatus:
    return status(
        **given,
        current={"pass": "20200401/00", "state": state, "epoch": epoch, "reason": ""},
        passes=[{"pass": "20200401/00", "ordinal": 1, "state": state, "tasks": 4, "tasksDone": 1}],
    )


@pytest.mark.parametrize(
    ("status_", "candidate", "sentence"),
    [
        (None, None, "the master starts"),
        (status(ready=False), None, "generation 1: 1 pservers serve, 1 trainers joined"),
        (at("waiting"), None, "pass 20200401/00 waits for its files"),
        (at("waiting", waitsFor="00/_SUCCESS"), None, "pass 20200401/00 waits for 00/_SUCCESS"),
        (at("checking"), None, "pass 20200401/00 is being checked (1 of 4 tasks done)"),
        (at("training"), None, "pass 20200401/00 is being trained (1 of 4 tasks done)"),
        (at("training", 2), None, "pass 20200401/00 is being trained, epoch 2 (1 of 4 tasks done)"),
        (at("saving"), None, "pass 20200401/00 is being saved and exported"),
        (at("stopped"), None, "pass 20200401/00 is stopped"),
        (status(), 7, "version 7 is loaded and validated"),
        (status(), None, "looks for the next pass"),
        (status(finished=True), None, "the last version is built"),
    ],
)
def test_a_run_says_where_it_is_in_one_sentence(
    status_: TrainingStatus | None, candidate: int | None, sentence: str
) -> None:
    assert stage(status_, candidate) == sentence


def test_a_run_that_stands_still_says_why() -> None:
    pservers = [{"index": 0, "error": ""}, {"index": 1, "error": "the disk is full"}]

    assert troubles(None) == []
    assert troubles(status(pservers=pservers[:1])) == []
    assert troubles(status(error="the store is gone", pservers=pservers)) == [
        "the store is gone",
        "pserver 1: the disk is full",
    ]
