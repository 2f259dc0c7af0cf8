"""Any order of losses while a folder grows: every line is trained, and what is trained is what the newest version has."""

import logging
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from training.master.stream_world import StreamWorld
from training.master.test_interleavings import Interleavings

_CONFIG = {"max_failures": 100, "max_lost_leases": 100}


class StreamInterleavings(Interleavings):
    @initialize(seconds=st.sampled_from([1.0, 20.0, 3600.0]), versions=st.sampled_from([1, 3, 500]))
    def begin(self, seconds: float, versions: int) -> None:
        stream = {"window_ms": 300, "checkpoint_seconds": seconds, "compact_versions": versions}
        self.world: StreamWorld = StreamWorld(Path(self.folder.name), config=_CONFIG, stream=stream)
        self.world.handover_seconds = 30
        self.world.start_master()
        self.world.ledger.db.execute("pragma synchronous = off")
        self.world.append(1)

    @rule(lines=st.integers(1, 9), file=st.sampled_from(["one", "two"]))
    def lines_are_appended(self, lines: int, file: str) -> None:
        self.world.append(lines, file)

    @rule(seconds=st.sampled_from([-7200.0, -30.0, 30.0, 7200.0]))
    def the_clock_is_set(self, seconds: float) -> None:
        self.world.clock_set += seconds

    def _finish(self) -> None:
        world = self.world
        logging.disable(logging.NOTSET)

        def all_is_done() -> bool:
            current = world.ledger.passes.current()
            waits = current is None or (current.state == "waiting" and not current.splits)
            return waits and set(world.in_the_table()) == set(world.appended()) and world.trained_is_answered()

        world.append(1)
        world.until(lambda: all_is_done() or world.reason() != "", 2000)
        assert world.reason() == ""
        counted = world.ledger.passes.counted()
        appended, table = world.appended(), world.in_the_table()
        assert counted["records"] == counted["trained"] == appended.total()
        assert (table - appended).total() <= counted["repeated"]
        if not world.ledger.recoveries():
            assert table == appended
        kinds = {version["kind"] for version in world.ledger.saves.versions()}
        assert kinds <= {"base", "delta"}
        world.ledger.close()


TestStreamInterleavings = StreamInterleavings.TestCase
TestStreamInterleavings.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
