from pathlib import Path

import pytest

from elastic_ctr.store.backends import StoreError
from elastic_ctr.store.versions.published_files import read_version
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.generations.recovery import VERIFY
from elastic_ctr.training.master.work.publisher import superseded
from training.master.world import LEASE, RECORDS, World, data_of, world


def test_a_new_pserver_process_raises_the_generation_and_rolls_back_to_the_last_checkpoint(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: len(one.ledger.passes.all()) == 2)
    worker = one.until_phase(control.TRAIN)
    worker.report()
    before = one.ledger.passes.counted()["trained"]

    one.pservers[1].restart()
    one.pservers[1].sync()

    counted = one.ledger.passes.counted()
    assert one.coordinator.generation == 2
    assert counted["trained"] == 2 * RECORDS
    assert counted["rolledBack"] == before - 2 * RECORDS > 0
    one.finish()
    assert set(one.trained().values()) == {1}
    assert one.ledger.passes.counted()["trained"] == 4 * RECORDS


def test_the_end_of_a_server_process_is_a_recovery(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until_phase(control.TRAIN)

    one.pservers[0].lost = True
    one.pservers[0].sync()

    assert one.coordinator.generation == 2
    assert one.ledger.recoveries()[-1]["reason"] == "the server process of pserver 0 has ended"
    one.finish()
    assert set(one.trained().values()) == {1}


def test_a_caller_of_an_old_generation_is_told_to_rejoin(tmp_path: Path) -> None:
    one = world(tmp_path)
    old = one.until_phase(control.TRAIN)
    one.pservers[0].restart()
    one.pservers[0].sync()

    answers = [
        one.coordinator.renew(control.RenewRequest(trainer_id=old.id, generation=1)),
        one.coordinator.initialised_by(old.member()),
        one.coordinator.report(control.TaskResult(trainer_id=old.id, generation=1, attempt=old.task.attempt)),  # type: ignore[union-attr]
    ]

    assert [(each.rejoin, each.reason) for each in answers] == [(True, "generation 1 is over, this is 2")] * 3


def test_a_pserver_replaced_before_anybody_initialised_costs_no_generation(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.pservers[0].sync()

    one.pservers[0].restart()
    one.pservers[0].sync()

    assert one.coordinator.generation == 1


def test_versions_after_the_checkpoint_are_abandoned_and_the_next_delta_stands_on_what_it_follows(
    tmp_path: Path,
) -> None:
    one = world(tmp_path, data=data_of(end="20200401/03"), config={"checkpoint_per_pass": 4})
    one.until(lambda: len(one.ledger.saves.versions()) == 3)
    base, *lost = [v["id"] for v in one.ledger.saves.versions()]

    one.pservers[0].restart()
    one.pservers[0].sync()

    states = {v["id"]: v["state"] for v in one.ledger.saves.versions()}
    assert states == {base: "published", **dict.fromkeys(lost, "abandoned")}
    one.finish()
    again = next(v for v in one.ledger.saves.versions() if v["id"] > lost[-1])
    assert again["parent"] == base
    assert read_version(one.store, again["id"]).parent == base
    assert set(one.trained().values()) == {1}


def test_a_pserver_started_again_after_the_end_is_no_recovery(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.finish()

    for _ in range(3):
        one.pservers[0].restart()
        assert one.pservers[0].sync().leave
        one.turn()

    assert one.coordinator.generation == 1
    assert one.ledger.recoveries() == []


def test_a_server_process_that_ends_after_the_end_is_no_recovery(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.finish()

    one.pservers[0].lost = True

    assert one.pservers[0].sync().leave
    assert one.coordinator.generation == 1
    assert one.ledger.recoveries() == []


def replaced(one: World, servers: int) -> None:
    """What an upgrade with another number of pservers does: a master with new settings, new pods, the old ones still there."""
    one.training, one.servers = "ctr-train-b", servers
    one.start_master()
    one.start_training()


@pytest.mark.parametrize("servers", [1, 3])
def test_another_training_takes_over_from_the_last_checkpoint_with_its_own_number_of_pservers(
    tmp_path: Path, servers: int
) -> None:
    one = world(tmp_path)
    one.until(lambda: len(one.ledger.passes.all()) == 2)
    one.until_phase(control.TRAIN).report()
    pservers, trainers = one.pservers, one.trainers

    replaced(one, servers)

    assert one.ledger.recoveries()[-1]["reason"] == "training local was replaced by ctr-train-b"
    one.finish()
    assert one.coordinator.generation == 2
    assert all(each.gone for each in pservers)
    assert all(each.gone for each in trainers)
    assert set(one.trained().values()) == {1}
    assert one.ledger.passes.counted()["trained"] == 4 * RECORDS


def test_members_of_a_replaced_training_are_told_to_leave_and_change_nothing(tmp_path: Path) -> None:
    one = world(tmp_path)
    old = one.until_phase(control.TRAIN)
    replaced(one, 2)

    orders = one.pservers[0].sync()
    rejoined = one.coordinator.renew(control.RenewRequest(trainer_id=old.id, generation=1))
    reply = one.coordinator.join(old.name, old.id, "local")

    assert (orders.leave, orders.wrong_training) == (True, True)
    assert orders.reason == "training local was replaced by ctr-train-b"
    assert rejoined.rejoin
    assert (reply.verdict, reply.wrong_training) == (control.JoinReply.LEAVE, True)
    assert reply.reason == "training local was replaced by ctr-train-b"
    assert 0 not in dict(one.coordinator.pservers.items())


def test_a_training_that_is_over_is_not_repeated_under_another_name(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.finish()

    replaced(one, 3)

    assert one.coordinator.generation == 1
    assert one.coordinator.finished
    assert one.pservers[-1].sync().leave


def test_sample_lines_that_are_forgotten_are_not_missed_by_a_recovery(tmp_path: Path) -> None:
    quiet = {f"20200401/0{hour}/{name}" for hour in (3, 4, 6) for name in ("one", "two")}
    one = world(tmp_path, data=data_of(end="20200401/07"), keyless=quiet)
    one.until(lambda: len(one.ledger.passes.all()) == 6)
    for name in superseded(one.ledger.saves.checkpoints(), keep=1):
        one.ledger.saves.remove_checkpoint(name)
    one.until(lambda: len(one.ledger.passes.all()) == 7)
    one.until_phase(control.TRAIN)
    assert [bool(one.ledger.tasks.samples(ordinal)) for ordinal in (1, 2, 3)] == [False, False, True]

    one.pservers[0].restart()
    one.finish()

    assert one.coordinator.generation == 2
    assert set(one.trained().values()) == {1}
    assert one.ledger.passes.counted()["trained"] == 16 * RECORDS
    assert {version["state"] for version in one.ledger.saves.versions()} <= {"published", "abandoned"}


def world_of_a_late_initializer(tmp_path: Path) -> tuple[World, control.Membership]:
    """The first trainer's lease to initialise has run out, and the second is at it."""
    one = world(tmp_path)
    one.until(lambda: one.trainers[0].initialises is not None)
    late = one.trainers[0].member()
    one.now += LEASE
    one.coordinator.tick()
    one.trainers[1].join()
    return one, late


def test_exactly_one_trainer_initialises(tmp_path: Path) -> None:
    one = world(tmp_path)
    for _ in range(3):
        for pserver in one.pservers:
            pserver.sync()

    verdicts = [trainer.join().verdict for trainer in one.trainers]

    assert verdicts == [control.JoinReply.INITIALISE, control.JoinReply.WAIT]


def test_an_initializer_that_misses_its_lease_is_replaced_within_the_generation(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: one.trainers[0].initialises is not None)
    late = one.trainers[0]
    one.now += LEASE
    one.coordinator.tick()

    verdict = one.trainers[1].join().verdict
    answer = one.coordinator.initialised_by(late.member())

    assert verdict == control.JoinReply.INITIALISE
    assert answer.rejoin
    assert one.coordinator.generation == 1


def test_an_initializer_that_wakes_after_the_gate_has_opened_is_a_recovery(tmp_path: Path) -> None:
    one, late = world_of_a_late_initializer(tmp_path)
    one.coordinator.initialised_by(one.trainers[1].member())
    again = one.coordinator.initialised_by(one.trainers[1].member())

    answer = one.coordinator.initialised_by(late)

    assert not again.rejoin, "the same report twice is one"
    assert answer.rejoin
    assert one.coordinator.generation == 2, "what it wrote lies over what was learned"


def test_an_initializer_that_ends_itself_after_the_gate_has_opened_is_a_recovery_too(tmp_path: Path) -> None:
    one, late = world_of_a_late_initializer(tmp_path)
    one.coordinator.initialised_by(one.trainers[1].member())

    renewed = one.coordinator.renew(control.RenewRequest(trainer_id=late.trainer_id, generation=late.generation))

    assert renewed.rejoin
    assert one.coordinator.generation == 2, "what it was sending may lie over what was learned"


def test_one_that_never_heard_that_it_is_to_initialise_and_is_let_in_later_has_overwritten_nothing(
    tmp_path: Path,
) -> None:
    one = world(tmp_path)
    unheard, other = one.trainers
    one.until(lambda: unheard.initialises is not None)
    unheard.initialises, unheard.generation = None, 0
    one.now += LEASE
    one.coordinator.tick()
    other.join()
    other.initialise()

    assert unheard.join().verdict == control.JoinReply.JOIN
    assert not unheard.renew().rejoin
    assert one.coordinator.generation == 1


def test_an_initializer_in_whose_place_another_is_at_work_is_told_so_and_nothing_else(tmp_path: Path) -> None:
    one, late = world_of_a_late_initializer(tmp_path)

    renewed = one.coordinator.renew(control.RenewRequest(trainer_id=late.trainer_id, generation=late.generation))

    assert renewed.rejoin
    assert one.coordinator.generation == 1, "loading twice is harmless"


def test_an_initializer_that_renews_is_not_replaced(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: one.trainers[0].initialises is not None)
    for _ in range(4):
        one.now += 5
        one.trainers[0].renew()
        one.coordinator.tick()

    assert one.trainers[1].join().verdict == control.JoinReply.WAIT


def test_a_checkpoint_that_did_not_load_whole_is_tried_again_and_stops_the_pass_at_the_third_time(
    tmp_path: Path,
) -> None:
    one = world(tmp_path)
    one.until(lambda: len(one.ledger.saves.checkpoints()) == 1)
    one.pservers[0].restart()
    one.pservers[0].sync()

    for number in range(3):
        one.until(lambda: VERIFY in one.pservers[0].saved)
        assert one.coordinator.generation == 2 + number
        one.pservers[0].saved[VERIFY] = {}
        one.until(lambda: one.reason() != "" or VERIFY not in one.pservers[0].saved)

    assert "did not load whole: partition 0 holds 0 rows of 2, 3 times" in one.reason()


def test_a_master_restarted_while_a_load_is_verified_has_it_loaded_again(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: len(one.ledger.saves.checkpoints()) == 1)
    del one.trainers[1]
    one.pservers[0].restart()
    one.pservers[0].sync()
    one.until(lambda: VERIFY in one.pservers[0].saved)

    one.start_master()
    one.finish()

    assert set(one.trained().values()) == {1}


def test_a_checkpoint_whose_manifest_cannot_be_read_yet_is_verified_once_it_can(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: len(one.ledger.saves.checkpoints()) == 1)
    one.pservers[0].restart()
    one.pservers[0].sync()
    one.until(lambda: VERIFY in one.pservers[0].saved)
    get_bytes = one.store.get_bytes

    def away(path: str) -> bytes:
        raise StoreError("the store is away")

    one.store.get_bytes = away  # type: ignore[method-assign]
    for _ in range(2):
        for pserver in one.pservers:
            pserver.sync()
    one.store.get_bytes = get_bytes  # type: ignore[method-assign]
    one.finish()

    assert one.coordinator.generation == 2
    assert set(one.trained().values()) == {1}


def test_an_initializer_that_hangs_and_renews_is_replaced_after_the_longest_time(tmp_path: Path) -> None:
    one = world(tmp_path, config={"save_timeout_seconds": 60.0})
    one.until(lambda: one.trainers[0].initialises is not None)

    answer = one.hang(one.trainers[0], 1000)

    assert answer.rejoin
    assert one.trainers[1].join().verdict == control.JoinReply.INITIALISE
    assert one.coordinator.generation == 1
    one.finish()
    assert set(one.trained().values()) == {1}


def lose_the_table(one: World) -> str:
    """The last checkpoint, which a new pserver will ask for."""
    one.pservers[0].restart()
    return str(one.ledger.saves.checkpoints()[-1]["name"])


def test_a_damaged_checkpoint_is_set_aside_and_the_one_before_it_is_trained_from(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(end="20200401/03"))
    one.until(lambda: len(one.ledger.saves.checkpoints()) == 2)
    older = one.ledger.saves.checkpoints()[0]["name"]
    damaged = lose_the_table(one)
    one.damaged = {damaged}

    one.finish()

    assert set(one.trained().values()) == {1}
    assert one.ledger.passes.counted()["rolledBack"] >= 2 * RECORDS, (
        "the hour of the damaged checkpoint is trained again"
    )
    assert one.ledger.passes.counted()["trained"] == 8 * RECORDS
    back = [each["reason"] for each in one.ledger.recoveries() if each["role"] == "store"]
    assert back == [
        f"checkpoint {damaged} is damaged, training goes back to {older}: {damaged} is not what its manifest says"
    ]
    assert damaged not in [row["name"] for row in one.ledger.saves.checkpoints()]


def test_a_damaged_checkpoint_without_another_is_waited_for_and_training_goes_on_once_it_is_back(
    tmp_path: Path,
) -> None:
    one = world(tmp_path)
    one.until(lambda: len(one.ledger.saves.checkpoints()) == 1)
    one.damaged = {lose_the_table(one)}
    one.until(lambda: "no older one is whole" in one.coordinator.save_waits)

    one.damaged = set()
    one.finish()

    assert one.coordinator.save_waits == ""
    assert one.coordinator.generation == 2
    assert set(one.trained().values()) == {1}


def test_a_store_that_has_lost_every_checkpoint_sets_none_aside(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(end="20200401/03"))
    one.until(lambda: len(one.ledger.saves.checkpoints()) == 2)
    before = one.ledger.saves.checkpoints()
    lose_the_table(one)
    one.damaged = {row["name"] for row in before}
    one.until(lambda: "no older one is whole" in one.coordinator.save_waits)

    assert one.ledger.saves.checkpoints() == before
    assert one.ledger.saves.damaged_checkpoints() == []


def test_a_checkpoint_that_never_loads_whole_is_set_aside_where_there_is_another(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(end="20200401/03"))
    one.until(lambda: len(one.ledger.saves.checkpoints()) == 2)
    damaged = lose_the_table(one)

    def emptied() -> bool:
        for each in one.pservers:
            if each.fetched == damaged and each.saved.get(VERIFY):
                each.saved[VERIFY] = {}
        return one.coordinator.finished

    one.until(emptied)

    assert set(one.trained().values()) == {1}
    assert one.reason() == ""
