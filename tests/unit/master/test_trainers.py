from pathlib import Path

import pytest

from elastic_ctr.master.ledger import Ledger
from elastic_ctr.master.trainers import Trainers


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.db")


def test_a_trainer_without_an_id_is_given_one_that_nobody_had(ledger: Ledger) -> None:
    trainers = Trainers(ledger)

    ids = [trainers.enter(name, 0, 1.0) for name in ("a", "b", "a")]

    assert ids == [1, 2, 3]


def test_a_trainer_keeps_its_id_over_a_restart_of_the_master(ledger: Ledger) -> None:
    mine = Trainers(ledger).enter("a", 0, 1.0)

    again = Trainers(ledger).enter("a", mine, 2.0)

    assert again == mine


def test_an_id_that_was_never_given_out_here_is_replaced(ledger: Ledger) -> None:
    trainers = Trainers(ledger)

    assert trainers.enter("from another ledger", 7, 1.0) == 1
    assert [trainers.given_out(number) for number in (1, 2)] == [True, False]


def test_a_trainer_that_left_or_was_not_heard_is_not_among_those_present(ledger: Ledger) -> None:
    trainers = Trainers(ledger)
    for name in ("left", "silent", "here"):
        trainers.enter(name, 0, 1.0)

    trainers.leave(1)
    trainers.heard(3, 9.0)

    assert trainers.heard_since(5.0) == {3: ("here", 9.0)}
