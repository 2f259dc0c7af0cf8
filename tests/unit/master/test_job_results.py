from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master.job_results import JobResults

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


def test_an_answer_that_is_given_up_is_asked_for_again() -> None:
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
