from pathlib import Path

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master.initialisation import VERIFY
from elastic_ctr.store import StoreError
from master.world import LEASE, World, world


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
    one.until(lambda: len(one.ledger.checkpoints()) == 1)
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
    one.until(lambda: len(one.ledger.checkpoints()) == 1)
    del one.trainers[1]
    one.pservers[0].restart()
    one.pservers[0].sync()
    one.until(lambda: VERIFY in one.pservers[0].saved)

    one.start_master()
    one.finish()

    assert set(one.trained().values()) == {1}


def test_a_checkpoint_whose_manifest_cannot_be_read_yet_is_verified_once_it_can(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: len(one.ledger.checkpoints()) == 1)
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
