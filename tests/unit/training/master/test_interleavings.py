"""Any order of joins, leases, reports, losses, expiries and restarts: what holds at every step, and in the end."""

import logging
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from elastic_ctr.config.training_settings import MasterConfig
from elastic_ctr.store.versions.published_files import read_version
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.ledger.pass_table import total_of
from elastic_ctr.training.master.training_status import status, status_of_ledger
from training.master.world import RECORDS, Trainer, World, data_of, features_of, rows_data_of

SHARED_MEMORY = Path("/dev/shm")
somebody = st.integers(0, 1)


class Interleavings(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        logging.disable(logging.CRITICAL)
        # Memory is enough: what survives a power cut is not asked here.
        self.folder = tempfile.TemporaryDirectory(dir=SHARED_MEMORY if SHARED_MEMORY.is_dir() else None)
        self.generations: list[int] = []
        self.replacements = 0

    @initialize(
        epochs=st.integers(1, 2),
        checkpoints=st.integers(1, 2),
        evaluate=st.booleans(),
        analyzed=st.booleans(),
        holdout=st.sampled_from([0.0, 0.2]),
    )
    def begin(self, epochs: int, checkpoints: int, evaluate: bool, analyzed: bool, holdout: float) -> None:
        self.epochs, self.held_out = epochs, round(RECORDS * holdout)
        config = MasterConfig(checkpoint_per_pass=checkpoints, evaluate=evaluate, max_failures=100, max_lost_leases=100)
        given = {"end": "20200401/02", "maxRefusedShare": 0.5, "holdout": holdout}
        data = rows_data_of(**given) if analyzed else data_of(**given)
        # Nothing here is killed: what a crash leaves is another test's matter.
        self.world = World(
            Path(self.folder.name),
            data,
            config,
            epochs,
            refused={"20200401/00/one": 2},
            records={"20200401/01/two": 0},
            handover_seconds=30,
            features=features_of() if analyzed else None,
        )
        self.world.ledger.db.execute("pragma synchronous = off")

    @rule(rounds=st.integers(1, 12))
    def go_on(self, rounds: int) -> None:
        for _ in range(rounds):
            self.world.turn()

    @rule(who=somebody)
    def trainer_steps(self, who: int) -> None:
        self.world.trainers[-1 - who].step()

    @rule(who=somebody)
    def trainer_trains_and_says_nothing(self, who: int) -> None:
        if self.world.trainers[-1 - who].joined:
            self.world.trainers[-1 - who].work()

    @rule(who=somebody)
    def trainer_fails(self, who: int) -> None:
        one = self.world.trainers[-1 - who]
        if one.task is not None and one.task.phase not in (control.SAVE, control.SCORE):
            one.report(error="no luck")

    @rule(who=somebody)
    def trainer_is_killed(self, who: int) -> None:
        self.world.trainers[-1 - who].start()

    @rule(who=somebody)
    def trainer_leaves(self, who: int) -> None:
        one = self.world.trainers[-1 - who]
        if one.joined and not one.pushed:
            self.world.coordinator.leave(one.member())
            one.start()

    @rule(who=somebody)
    def trainer_leaves_for_its_own_disk(self, who: int) -> None:
        one = self.world.trainers[-1 - who]
        if one.joined:
            one.leave("its disk is full", table_unchanged=not one.pushed)

    @rule(who=somebody)
    def pserver_is_killed(self, who: int) -> None:
        self.world.pservers[who - self.world.servers].restart()

    @rule(who=somebody)
    def server_process_ends(self, who: int) -> None:
        if self.world.pservers[who - self.world.servers].up:
            self.world.pservers[who - self.world.servers].lost = True

    @rule(who=somebody)
    def pserver_syncs(self, who: int) -> None:
        self.world.pservers[who - self.world.servers].sync()

    @rule(seconds=st.sampled_from([1.0, 11.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds
        self.world.coordinator.tick()

    @rule()
    def publisher_steps(self) -> None:
        self.world.publisher.step()

    @rule()
    def statistics_are_merged(self) -> None:
        self.world.statistics.step()

    @rule()
    def master_restarts(self) -> None:
        self.world.start_master()
        self.world.ledger.db.execute("pragma synchronous = off")

    @rule(servers=st.integers(2, 3), killed=st.booleans())
    def training_is_replaced(self, servers: int, killed: bool) -> None:
        world = self.world
        if killed:
            world.pservers, world.trainers = [], []
        world.replace(f"training-{self.replacements}", servers)
        self.replacements += 1
        world.ledger.db.execute("pragma synchronous = off")

    @rule(who=st.integers(0, 20))
    def somebody_of_the_training_before_is_killed(self, who: int) -> None:
        old = [one for one in self.world.members() if one.leaving]
        if old:
            old[who % len(old)].gone = True

    @invariant()
    def the_generation_never_falls(self) -> None:
        if hasattr(self, "world"):
            self.generations.append(self.world.coordinator.generation)
            assert self.generations == sorted(self.generations)

    @invariant()
    def the_status_is_that_of_the_ledger_read_anew(self) -> None:
        if hasattr(self, "world"):
            ledger = self.world.ledger
            assert status(self.world.coordinator).passes == status_of_ledger(ledger).passes
            assert ledger.passes.counts() == total_of(ledger.passes.counts_by_pass(0), ledger.facts.dropped)

    @invariant()
    def no_task_has_two_live_leases(self) -> None:
        if not hasattr(self, "world"):
            return

        def alive(one: Trainer) -> bool:
            return one.task is not None and self.world.ledger.tasks.of_attempt(one.task.attempt) is not None

        held = [one.task.id for one in self.world.trainers if one.task is not None and alive(one)]
        assert len(held) == len(set(held))

    @invariant()
    def nothing_is_converted_without_the_pinned_statistics(self) -> None:
        if hasattr(self, "world") and self.world.features is not None:
            used = {(phase == control.ANALYZE, statistics) for _, phase, statistics in self.world.used}
            assert used <= {(True, ""), (False, self.world.ledger.facts.statistics)}

    def teardown(self) -> None:
        try:
            if hasattr(self, "world"):
                self._finish()
        finally:
            logging.disable(logging.NOTSET)
            self.folder.cleanup()

    def _finish(self) -> None:
        world = self.world
        world.until(lambda: world.coordinator.finished or world.reason() != "", 2000)
        assert world.reason() == ""
        counted = world.ledger.passes.counted()
        assert counted["records"] == 5 * RECORDS + 2
        assert counted["heldOut"] == 5 * self.held_out
        assert counted["records"] == sum(counted[name] for name in ("trained", "heldOut", "refused", "parked"))
        trained = world.trained()
        assert len(trained) == 5
        assert all(times >= self.epochs for times in trained.values())
        again = sum(times - self.epochs for times in trained.values())
        # `repeated` says how often records may be in the table once more: never less than they are.
        assert again * (RECORDS - self.held_out) <= counted["repeated"]
        if not world.ledger.recoveries():
            assert again == 0
        published = {v["id"]: v for v in world.ledger.saves.versions() if v["state"] == "published"}
        for number, version in published.items():
            parent = read_version(world.store, number).parent
            assert parent == version["parent"]
            assert parent is None or parent in published
        assert [p.state for p in world.ledger.passes.all()] == ["done"] * 3
        world.ledger.close()


TestInterleavings = Interleavings.TestCase
TestInterleavings.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
