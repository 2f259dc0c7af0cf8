from itertools import pairwise
from pathlib import Path

import pytest

from elastic_ctr.store.versions.published_files import published_versions
from elastic_ctr.training.control import control_pb2 as control
from training.master.world import RECORDS, world


def test_two_passes_go_from_their_hours_to_two_versions(tmp_path: Path) -> None:
    one = world(tmp_path)

    one.finish()

    states = [(each.id, each.state) for each in one.ledger.passes.all()]
    assert states == [("20200401/00", "done"), ("20200401/01", "done")]
    assert [v["kind"] for v in one.ledger.saves.versions()] == ["base", "delta"]
    assert published_versions(one.store) == [v["id"] for v in one.ledger.saves.versions()]
    assert set(one.trained().values()) == {1}
    assert one.ledger.passes.counted() == {
        "files": 4,
        "records": 4 * RECORDS,
        "trained": 4 * RECORDS,
        "refused": 0,
        "parked": 0,
        "repeated": 0,
        "heldOut": 0,
        "rolledBack": 0,
    }


def test_a_trainer_waits_for_the_pservers_by_name(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.pservers[0].sync()

    reply = one.trainers[0].join()

    assert reply.verdict == control.JoinReply.WAIT
    assert reply.reason == "waits for pserver 0, 1 of 2"


def test_an_unknown_trainer_is_told_to_rejoin(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: one.coordinator.initialised)

    reply = one.coordinator.lease(control.LeaseRequest(trainer_id=99, generation=1))

    assert reply.verdict == control.LeaseReply.REJOIN
    assert "never given out" in reply.reason


def test_a_silent_pserver_is_named_and_lost_once_the_master_has_looked(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until_phase(control.TRAIN)
    one.now += 6
    one.pservers[0].sync()

    assert one.coordinator.silent_pservers() == [(1, "127.0.0.1", 1)]
    one.coordinator.declare_lost(1, "it is silent")
    assert one.coordinator.generation == 2


def test_a_report_of_an_unreachable_server_names_the_parent_to_ask(tmp_path: Path) -> None:
    one = world(tmp_path)
    trainer = one.until_phase(control.TRAIN)
    server = one.coordinator.pservers.servers(1)[1]

    report = control.UnreachableReport(trainer_id=trainer.id, generation=1, server=server, reason="timed out")

    assert one.coordinator.unreachable(report) == (1, "127.0.0.1", 1)
    report.generation = 7
    assert one.coordinator.unreachable(report) is None


def test_a_master_that_restarts_keeps_generation_leases_and_saver(tmp_path: Path) -> None:
    one = world(tmp_path)
    worker = one.until_phase(control.TRAIN)
    one.now += 9
    one.start_master()
    one.now += 9
    one.coordinator.tick()

    assert not worker.report().rejoin
    one.until(lambda: any(t.task is not None and t.task.phase == control.SAVE for t in one.trainers))
    saver = next(t for t in one.trainers if t.task is not None)
    saver.work()
    one.start_master()
    assert not saver.report().rejoin
    one.finish()
    assert one.coordinator.generation == 1
    assert set(one.trained().values()) == {1}
    assert one.ledger.passes.counted()["repeated"] == 0


@pytest.mark.parametrize("rounds", range(1, 30, 2))
def test_a_master_restarted_at_any_moment_finishes_the_same_work(tmp_path: Path, rounds: int) -> None:
    one = world(tmp_path)
    for _ in range(rounds):
        one.turn()

    one.start_master()
    one.finish()

    assert set(one.trained().values()) == {1}
    assert [v["state"] for v in one.ledger.saves.versions()] == ["published", "published"]
    assert one.coordinator.generation == 1


def test_a_pass_that_was_stopped_is_retried_without_a_restart(tmp_path: Path) -> None:
    one = world(tmp_path, refused={"20200401/01/two": RECORDS})
    one.until_state("stopped")
    assert "most of them are in 20200401/01/two (10); nothing was trained" in one.reason()
    assert "run `elastic-ctr pass retry 20200401/01`" in one.reason()
    assert one.coordinator.retry("20200401/00") == "pass 20200401/00 is not stopped, pass 20200401/01 is"

    one.refused = {}
    assert one.coordinator.retry("20200401/01") == ""
    one.finish()

    assert one.coordinator.generation == 1
    assert set(one.trained().values()) == {1}
    assert one.coordinator.retry("20200401/01") == "no pass is stopped; every pass is done"


def test_records_that_a_check_cannot_predict_and_an_operator_skips_are_left_out_by_every_task_of_their_file(
    tmp_path: Path,
) -> None:
    one = world(tmp_path, config={"max_failures": 1})
    path = "20200401/00/one"

    def left_out(task: control.Task | None) -> list[tuple[str, str, list[int]]]:
        assert task is not None
        return [(each.path, each.reason, list(each.offsets)) for each in task.left_out]

    trainer = one.until_phase(control.CHECK)
    assert trainer.task is not None
    assert trainer.task.path == path
    trainer.report(unpredictable=[control.LeftOut(path=path, offsets=[7, 3], reason="unpredictable")])
    trainer = one.until_phase(control.TRAIN)
    assert left_out(trainer.task) == [(path, "unpredictable", [3, 7])]
    trainer.report(error="broken")

    assert one.coordinator.retry("20200401/00", [("20200401/00/three", 1)]) == (
        "pass 20200401/00 has no 20200401/00/three; it has 20200401/00/one, 20200401/00/two"
    )
    assert one.reason() != ""
    assert one.coordinator.retry("20200401/00", [(path, 12)]) == ""
    before = len(one.tasks)
    one.finish()

    # What the check had found is found again, or not: the files may have been mended.
    left = {task.path: left_out(task) for task in one.tasks[before:] if task.phase in (control.CHECK, control.TRAIN)}
    assert left.pop(path) == [(path, "skipped", [12])]
    assert not any(left.values())


def test_a_pass_that_was_stopped_in_training_is_retried_from_the_checkpoint_before_it(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_failures": 1})
    one.until(lambda: len(one.ledger.saves.checkpoints()) == 1)
    trainer = one.until_phase(control.TRAIN)
    other = one.until_phase(control.TRAIN, 1)
    other.work()
    trainer.report(error="broken")
    assert one.reason() != ""

    assert one.coordinator.retry("20200401/01") == ""
    one.finish()

    assert one.coordinator.generation == 2
    assert set(one.trained().values()) == {1}
    assert one.ledger.passes.counted()["parked"] == 0


def test_totals_only_grow_whatever_is_read_or_trained_again(tmp_path: Path) -> None:
    one = world(tmp_path, refused={"20200401/01/two": 1})
    seen: list[dict[str, int]] = []

    def look() -> bool:
        seen.append(one.ledger.passes.totals())
        return True

    one.until(lambda: look() and one.reason() != "")
    one.refused = {}
    one.coordinator.retry("20200401/01")
    one.until_phase(control.TRAIN).report()
    look()
    one.pservers[0].restart()
    one.until(lambda: look() and one.coordinator.finished)

    for before, after in pairwise(seen):
        assert all(before[name] <= after[name] for name in before)
    assert seen[-1] == {
        "files": 4, "records": 6 * RECORDS, "refused": 1, "trained": 5 * RECORDS, "repeated": 0, "rolled_back": RECORDS,
    }  # fmt: skip
    assert one.ledger.passes.all()[-1].auc_before == 0.5


def test_the_records_of_a_pass_of_one_file_come_in_another_order_the_same_in_every_phase(tmp_path: Path) -> None:
    one = world(tmp_path, files=("one",))

    one.finish()

    seeds = {(task.path, task.shuffle_seed) for task in one.tasks if task.phase in (control.CHECK, control.TRAIN)}
    assert len(seeds) == 2
    assert all(seed for _, seed in seeds)


def test_a_task_of_several_files_names_them_and_no_trainer_of_an_earlier_release_is_given_it(tmp_path: Path) -> None:
    one = world(tmp_path, config={"max_failures": 1})
    one.until(lambda: one.coordinator.found.wants_hours() is not None)
    wanted = one.coordinator.found.wants_hours()
    assert wanted is not None
    parts = [(f"20200401/00/{name}", 0, 0) for name in ("one", "two", "three")]
    one.coordinator.found.hours_found(wanted, {path: 100 for path, *_ in parts}, [parts])
    trainer = one.trainers[0]
    one.until(lambda: trainer.task is None and one.coordinator.initialised and trainer.generation)
    request = control.LeaseRequest(trainer_id=trainer.id, generation=trainer.generation)

    assert one.coordinator.lease(request).verdict == control.LeaseReply.WAIT
    request.reads_further = True
    given = one.coordinator.lease(request)
    assert [(each.path, each.start, each.end) for each in given.task.further] == parts[1:]
    result = control.TaskResult(
        trainer_id=trainer.id, generation=trainer.generation, task_id=given.task.id, attempt=given.task.attempt,
        records=1, shows=2, clicks=1, refused=[control.Refusal(reason="no_colon", lines=5, examples=["1 0 17"])],
        refused_of={"20200401/00/one": 1, "20200401/00/three": 4},
    )  # fmt: skip
    one.coordinator.report(result)

    assert "most of them are in 20200401/00/three (4)" in one.reason()
    assert one.ledger.passes.counted()["files"] == 3
