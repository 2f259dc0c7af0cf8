from pathlib import Path

import pytest

from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.generations.members import JobResults, Pservers, Trainers
from elastic_ctr.training.master.ledger.ledger import Ledger


def known(*, generation: int = 1, serving: bool = True, error: str = "", count: int = 2) -> Pservers:
    found = Pservers(2)
    for index in range(count):
        found.learn(
            control.PserverState(
                index=index,
                incarnation="x",
                host="h",
                server=f"h{index}:8800/{'0' * 32}",
                generation=generation,
                serving=serving,
                error=error,
            ),
            now=100.0,
        )
    return found


def test_servers_have_no_addresses_until_each_is_started_in_the_generation() -> None:
    assert known(count=1).servers(1) == []
    assert not known(count=1).complete
    assert known().complete
    assert known().servers(1) == [f"h0:8800/{'0' * 32}", f"h1:8800/{'0' * 32}"]
    assert known().servers(2) == []


def test_a_pserver_that_is_waited_for_is_named_with_its_error() -> None:
    assert known().waiting_for(1) == ""
    assert known(generation=1).waiting_for(2) == "pserver 0, 1 of 2"
    assert known(serving=False, error="no memory").waiting_for(1) == "pserver 0, 1 of 2 (no memory)"
    assert known(count=1).waiting_for(1) == "pserver 1 of 2"


def test_a_parent_is_silent_after_its_time_until_it_is_forgotten() -> None:
    one = known()

    assert one.silent(105.0, 5.0) == []
    assert one.silent(105.1, 5.0) == [0, 1]
    one.forget(0)
    assert one.silent(105.1, 5.0) == [1]


def test_those_that_never_called_are_unheard_too_and_others_begin_unknown() -> None:
    found = Pservers(3)
    found.learn(control.PserverState(index=1, host="a"), 10.0)
    found.learn(control.PserverState(index=2, host="b"), 5.0)

    assert found.silent_since(6.0) == [0, 2]
    found.begin(1)
    assert found.count == 1
    assert found.items() == []


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.db")


def test_a_trainer_without_an_id_gets_one_that_was_never_given(ledger: Ledger) -> None:
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


JOBS = [control.Job(id="one"), control.Job(id="two")]


def result(job: str) -> control.JobResult:
    return control.JobResult(id=job)


def test_jobs_are_open_for_each_pserver_until_it_has_answered_them() -> None:
    answers = JobResults(2)

    answers.take(0, result("one"))

    assert [job.id for job in answers.open(0, JOBS)] == ["two"]
    assert [job.id for job in answers.open(1, JOBS)] == ["one", "two"]


def test_jobs_are_complete_when_every_pserver_has_answered_all_of_them() -> None:
    answers = JobResults(2)
    complete = []

    for index in range(2):
        for job in JOBS:
            complete.append(answers.complete(JOBS))
            answers.take(index, result(job.id))

    assert complete == [False] * 4
    assert answers.complete(JOBS)
    assert sorted(each.id for each in answers.all()) == ["one", "one", "two", "two"]


def test_a_job_whose_result_is_given_up_is_open_again() -> None:
    answers = JobResults(1)
    answers.take(0, result("one"))

    answers.give_up(0, "one")
    answers.give_up(0, "never given")

    assert answers.open(0, JOBS) == JOBS


def test_cleared_it_knows_nothing() -> None:
    answers = JobResults(1)
    answers.take(0, result("one"))

    answers.clear()

    assert answers.all() == []
