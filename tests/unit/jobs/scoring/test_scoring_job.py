"""Cutting a job, and the folder that its processes share."""

import hashlib
from pathlib import Path

import pytest

from elastic_ctr.jobs.scoring.scoring_job import (
    DOCUMENT,
    SUCCESS,
    Job,
    JobFolder,
    Options,
    OtherJob,
    Outcome,
    OutputRefused,
    QualitySums,
    Share,
    Written,
    order_of,
    tasks_of,
)
from elastic_ctr.store.backends import FileStore, NotInStore

OPTIONS = Options(deed="predict", version="latest", source="file:///d", data="a", hours="20200401/00..")


def job_of(options: Options = OPTIONS, version: int = 7) -> Job:
    tasks = tasks_of(
        [("x/20200401/00/a", 0, 50), ("x/20200401/00/a", 50, 0), ("x/20200401/00/b", 0, 0)],
        {"x/20200401/00/a": 100, "x/20200401/00/b": 10},
        {"x/20200401/00/a": "20200401/00", "x/20200401/00/b": "20200401/00"},
        {"x/20200401/00/a": "20200401/00/a", "x/20200401/00/b": "20200401/00/b"},
        "csv",
    )
    return Job(options=options, version=version, manifest="m", tasks=tasks)


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(FileStore(tmp_path))


def test_outputs_are_named_as_their_inputs_and_stand_in_the_order_of_their_parts() -> None:
    tasks = job_of().tasks

    assert [task.output for task in tasks] == [
        "20200401/00/a.00001-of-00002.csv",
        "20200401/00/a.00002-of-00002.csv",
        "20200401/00/b.csv",
    ]
    assert [task.bytes for task in tasks] == [50, 50, 10]


def test_the_second_process_to_begin_a_job_gets_that_of_the_first(folder: JobFolder) -> None:
    first = folder.begin(job_of())

    assert folder.begin(job_of(version=8)) == first == folder.job()


def test_two_files_with_one_output_are_refused() -> None:
    with pytest.raises(
        OutputRefused, match=r"d/a and d/a\.00002-of-00002 would have the same output a\.00002-of-00002\.csv; rename"
    ):
        tasks_of(
            [("d/a", 0, 50), ("d/a", 50, 0), ("d/a.00002-of-00002", 0, 0)],
            {"d/a": 100, "d/a.00002-of-00002": 10},
            {"d/a": "d", "d/a.00002-of-00002": "d"},
            {"d/a": "a", "d/a.00002-of-00002": "a.00002-of-00002"},
            "csv",
        )


@pytest.mark.parametrize("left", ["20200401/00/b.csv", "_job/done/0.json", SUCCESS])
def test_a_folder_with_files_that_would_pass_for_those_of_a_new_job_is_refused(left: str, folder: JobFolder) -> None:
    folder.store.put_bytes(b"of another run", left)

    with pytest.raises(OutputRefused, match=f"{left} is in file://.* already, .*; give another folder, or delete this"):
        folder.begin(job_of())

    assert folder.job() is None


def test_outputs_of_a_process_that_has_begun_the_same_job_are_no_obstacle(folder: JobFolder) -> None:
    first = folder.begin(job_of())
    folder.store.put_bytes(b"", first.tasks[0].output)

    assert folder.begin(job_of()) == first


def test_files_that_no_task_writes_stay_where_they_are(folder: JobFolder) -> None:
    folder.store.put_bytes(b"", "20200401/00/notes.txt")
    evaluation = job_of(OPTIONS.model_copy(update={"deed": "evaluate"}))

    folder.begin(job_of())
    folder.store.delete("_job")
    folder.store.put_bytes(b"", evaluation.tasks[0].output)

    assert folder.begin(evaluation) == evaluation


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"deed": "evaluate"}, "the command: predict there, evaluate now"),
        ({"version": "live"}, "--version: latest there, live now"),
        ({"version": "8"}, "--version: latest there, 8 now"),
        ({"hours": "20200402/00.."}, "--from and --to: 20200401/00.. there, 20200402/00.. now"),
        ({"files": ("a", "b", "c", "d")}, "the files: none there, a, b, c … now"),
        ({"no_clicks": True}, "--no-clicks: not given there, given now"),
        ({"copied": ("user",)}, "--copy: none there, user now"),
        ({"data": "b"}, "how rows are read (`data` of the values file);"),
    ],
)
def test_another_run_is_refused_and_the_difference_named(
    folder: JobFolder, change: dict[str, object], told: str
) -> None:
    folder.begin(job_of())

    with pytest.raises(OtherJob, match="was begun by another run, and differs in") as refused:
        folder.begin(job_of(OPTIONS.model_copy(update=change)))

    assert told in str(refused.value)
    assert "give another folder, or delete this one" in str(refused.value)


def test_the_version_may_be_named_by_its_id(folder: JobFolder) -> None:
    folder.begin(job_of())

    folder.check(job_of(), OPTIONS.model_copy(update={"version": "7"}))


def test_a_damaged_document_is_refused(folder: JobFolder) -> None:
    folder.store.put_bytes(b"{}", DOCUMENT)

    with pytest.raises(OtherJob, match=r"_job/job\.json in .* is damaged"):
        folder.job()


def test_the_first_outcome_of_a_task_counts(folder: JobFolder) -> None:
    quality = QualitySums(predicted=0.5, positives={7: 2})
    folder.note(3, Outcome(rows=5, refused={"empty": 1}, quality=quality))
    folder.note(3, Outcome(rows=6))

    assert (folder.done(), folder.is_done(3), folder.is_done(4)) == ({3}, True, False)
    assert folder.outcome(3) == Outcome(rows=5, refused={"empty": 1}, quality=quality)
    with pytest.raises(NotInStore):
        folder.outcome(4)


def test_the_end_of_a_job_leaves_its_outputs_and_outcomes_alone(folder: JobFolder, tmp_path: Path) -> None:
    folder.begin(job_of())
    folder.note(0, Outcome(rows=5))
    for path in ("20200401/00/a.00001-of-00002.csv", "20200401/00/.part-0011223344556677"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()

    folder.finish(job_of().tasks)

    left = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file())
    assert left == ["20200401/00/a.00001-of-00002.csv", "_SUCCESS", "_job/done/0.json", "_job/job.json"]


def test_a_pod_scores_its_share_first_and_then_the_tasks_of_others() -> None:
    orders = [order_of(10, Share(pod, 3)) for pod in range(3)]

    assert [order[:3] for order in orders] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    assert all(sorted(order) == [*range(10)] for order in orders)


def test_machines_without_a_share_score_in_different_orders() -> None:
    first, second = order_of(1000, None), order_of(1000, None)

    assert first != second
    assert sorted(first) == sorted(second) == [*range(1000)]


@pytest.mark.parametrize("found", [b"rows\n1\n", b"rows\n1\n3\n", None], ids=["cut", "another byte", "lost"])
def test_an_output_that_is_not_as_it_was_written_is_done_again(tmp_path: Path, found: bytes | None) -> None:
    store, job = FileStore(tmp_path), job_of()
    folder = JobFolder(store)
    written = Written(bytes=9, sha256=hashlib.sha256(b"rows\n1\n2\n").hexdigest())
    for number, each in enumerate(job.tasks):
        store.put_bytes(b"rows\n1\n2\n", each.output)
        folder.note(number, Outcome(rows=2, written=written))
    folder.finish(job.tasks)
    assert folder.is_finished()
    assert list(folder.changed(job)) == []

    store.delete(job.tasks[1].output)
    if found is not None:
        store.put_bytes(found, job.tasks[1].output)
    assert list(folder.changed(job)) == [1]
    folder.reopen(job, 1)

    assert folder.done() == {0, 2}
    assert not folder.is_finished()
    assert not store.exists(job.tasks[1].output)


def test_results_of_an_earlier_release_and_of_evaluations_have_no_output_to_look_at(tmp_path: Path) -> None:
    folder = JobFolder(FileStore(tmp_path))
    folder.note(0, Outcome(rows=2))

    assert list(folder.changed(job_of())) == []
