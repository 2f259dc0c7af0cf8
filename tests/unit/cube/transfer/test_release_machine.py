"""The rules all together, against pods that crash, restart and drain as they like."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    initialize,
    invariant,
    multiple,
    precondition,
    rule,
)

from cube.transfer.release_parts import dictionary, hold
from elastic_ctr.config.cube_settings import CubeTransferConfig
from elastic_ctr.cube.placement import assigned_partitions, holders_by_version, shards_up, unneeded_partitions
from elastic_ctr.cube.release import AgentReport, Placement, ReaderReport, ReleaseDocument
from elastic_ctr.cube.transfer.state import (
    ReleaseState,
    RollbackRefused,
    View,
    advance,
    document_of,
    lagging_pods,
    obeyed,
    resume,
    rolled_back,
    state_after_loss,
    state_from_newer,
)
from elastic_ctr.store.versions.manifest import DictionaryManifest


class Release(RuleBasedStateMachine):
    """Transfer's rules, agents' rules, and a world that crashes, restarts, drains and publishes as it likes.

    Agents learn a document late, and transfer learns what they hold late; reports and documents are what travels.
    """

    pods: Bundle[str] = Bundle("pods")
    partitions = 4

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.shards = 2
        self.chosen = CubeTransferConfig(min_ready_replicas=1, validation_timeout_seconds=5.0)
        self.state: ReleaseState | None = ReleaseState(generation=1)
        self.saved: ReleaseState | None = self.state
        self.revision = 0
        self.document: ReleaseDocument | None = None
        self.built: dict[int, DictionaryManifest] = {}
        self.heard: dict[str, AgentReport] = {}
        self.readers: dict[str, ReaderReport] = {}
        self.servers: dict[str, dict[int, set[int]]] = {}
        self.known: dict[str, ReleaseDocument | None] = {}
        self.draining: set[str] = set()
        self.refused_ever: set[int] = set()
        self.highest = (0, 0)
        self.ordered: int | None = None

    @initialize(target=pods)
    def begin(self) -> MultipleResults[str]:
        for pod in ("c-s0-0", "c-s1-0"):
            self.servers[pod], self.known[pod] = {}, None
        return multiple("c-s0-0", "c-s1-0")

    @rule(rounds=st.integers(1, 3), leaves=st.none() | pods)
    def a_while_goes_by(self, rounds: int, leaves: str | None) -> None:
        """All pods do what they should; one may leave in the middle of it."""
        for _ in range(rounds):
            for pod in sorted(self.servers):
                self.learn(pod)
                self.work(pod, fails=False)
                if pod == leaves:
                    self.drain(pod)
                self.report(pod)

    @rule(target=pods, shard=st.integers(0, 2), replica=st.integers(0, 1))
    def start_pod(self, shard: int, replica: int) -> str:
        """A new pod, or one whose process is started again with nothing loaded."""
        pod = f"c-s{shard}-{replica}"
        self.servers[pod] = {}
        self.known.setdefault(pod, None)
        self.draining.discard(pod)
        return pod

    @rule(pod=pods)
    def crash(self, pod: str) -> None:
        self.servers.pop(pod, None)
        self.known.pop(pod, None)

    @rule(pod=pods)
    def drain(self, pod: str) -> None:
        self.draining.add(pod)

    @rule(pod=pods)
    def fall_silent(self, pod: str) -> None:
        if pod not in self.servers:
            self.heard.pop(pod, None)
            self.decide()

    @rule(pod=pods)
    def report(self, pod: str) -> None:
        if pod not in self.servers:
            return
        held = {v: tuple(sorted(parts)) for v, parts in self.servers[pod].items() if parts}
        shard = int(pod.split("-")[1][1:])
        report = AgentReport(pod=pod, address=f"{pod}:1", shard=shard, loaded=held, draining=pod in self.draining)
        carried = self.known[pod]
        if self.state is not None and carried is not None and carried.is_newer_than(self.document):
            self.revision = max(self.revision, carried.revision)
            self.decide(state_from_newer(self.state, carried))
        self.heard[pod] = report
        self.decide()

    @rule(pod=pods)
    def learn(self, pod: str) -> None:
        if pod in self.servers and self.document is not None and self.document.is_newer_than(self.known[pod]):
            self.known[pod] = self.document

    @rule(pod=pods, fails=st.booleans())
    def work(self, pod: str, fails: bool) -> None:
        """Load what is owed, if it can be; let go of what is not needed, as if nobody had asked for long."""
        document = self.known.get(pod)
        if pod not in self.servers or document is None or pod in self.draining:
            return
        held, shard = self.servers[pod], int(pod.split("-")[1][1:])
        for version in document.wanted:
            if version in self.built and not fails:
                held.setdefault(version, set()).update(assigned_partitions(shard, version, document, self.partitions))
        before = {p for parts in held.values() for p in parts}
        for version, parts in unneeded_partitions(held, document, shard, f"{pod}:1", self.partitions).items():
            held[version] -= parts
        live = document.live
        owed = frozenset[int]() if live is None else assigned_partitions(shard, live, document, self.partitions)
        assert before & owed <= {p for parts in held.values() for p in parts}

    @rule(gap=st.integers(1, 3))
    def publish(self, gap: int) -> None:
        version = max(self.built, default=0) + gap
        self.built[version] = dictionary(version)
        self.decide()

    @rule(pod=st.sampled_from("xy"), refuse_it=st.booleans())
    def serve(self, pod: str, refuse_it: bool) -> None:
        """A serving pod passes everything wanted, or refuses the candidate."""
        document = self.document
        if document is None:
            return
        candidate = document.candidate
        refused = {candidate: "differs"} if refuse_it and candidate is not None else {}
        passed = tuple(v for v in document.wanted if v not in refused)
        self.readers[pod] = ReaderReport(pod=pod, validated=passed, refused=refused)
        self.decide()

    @rule(pod=st.sampled_from("xy"))
    def serve_no_more(self, pod: str) -> None:
        self.readers.pop(pod, None)
        self.decide()

    @rule(seconds=st.sampled_from([1.0, 6.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.decide()

    @rule(version=st.integers(1, 20))
    def roll_back(self, version: int) -> None:
        if self.state is None:
            return
        try:
            after = rolled_back(self.state, version, self.view(), self.chosen)
        except RollbackRefused:
            assert version not in self.state.was_live or version in self.state.refused or version not in self.built
            return
        self.ordered = version
        self.decide(after)

    @rule()
    def resume(self) -> None:
        if self.state is not None:
            self.ordered = None
            self.decide(resume(self.state))

    @precondition(lambda self: self.built)
    @rule(first=st.integers(1, 20), more=st.integers(0, 3), newer=st.integers(0, 1))
    def hold(self, first: int, more: int, newer: int) -> None:
        """Of the master; one that was obeyed before changes nothing."""
        if self.state is None:
            return
        number = (0 if self.state.hold is None else self.state.hold.number) + newer
        if number:
            self.decide(obeyed(self.state, hold(first, first + more, number=number), self.view(), self.chosen))

    @rule()
    def restart_transfer(self) -> None:
        """With its state: what it heard is gone, what it said is not."""
        self.state, self.heard, self.readers = self.saved, {}, {}
        self.document = None
        self.revision += 1000
        self.decide()

    @precondition(lambda self: any(self.known.values()))
    @rule()
    def lose_state(self) -> None:
        carried = None
        for document in self.known.values():
            if document is not None and document.is_newer_than(carried):
                carried = document
        assert carried is not None
        self.heard, self.readers, self.document = {}, {}, None
        self.highest = (carried.generation, carried.revision)
        self.revision = carried.revision
        # Refusals that no pod had been told are as if they never were.
        self.refused_ever = set(carried.refused)
        self.decide(state_after_loss(carried))

    @rule(shards=st.integers(1, 3))
    def rescale(self, shards: int) -> None:
        self.shards = shards
        self.decide()

    def view(self) -> View:
        agents = list(self.heard.values())
        placement = Placement(shards=self.shards, up=shards_up(agents, self.shards))
        readers = list(self.readers.values())
        return View(self.now, self.built, holders_by_version(agents), readers, {}, agents, placement)

    def decide(self, state: ReleaseState | None = None) -> None:
        before = state or self.state
        if before is None:
            return
        after = advance(before, self.view(), self.chosen)
        assert advance(after, self.view(), self.chosen) == after
        if after.live != before.live and after.live is not None:
            answered = {
                p
                for holder in self.view().holders.get(after.live, {}).values()
                if not holder.draining
                for p in holder.partitions
            }
            assert answered >= set(range(self.partitions))
            assert not before.promotion_paused or (before.restoring and after.live == before.candidate)
            waited = self.now - (after.times[after.live].complete or self.now)
            if before.live is not None and not before.restoring and waited < self.chosen.validation_timeout_seconds:
                candidate = after.model_copy(update={"candidate": after.live, "complete_since": self.now})
                assert lagging_pods(candidate, self.view(), self.chosen) == ()
        self.state = self.saved = after
        placement = Placement(shards=self.shards, up=shards_up(self.heard.values(), self.shards))
        document = document_of(after, self.revision, placement, holders_by_version(self.heard.values()))
        if document != self.document:
            self.revision += 1
            self.document = document.model_copy(update={"revision": self.revision})
            stamp = (self.document.generation, self.document.revision)
            assert stamp > self.highest
            self.highest = stamp
        self.refused_ever |= after.refused.keys()

    @invariant()
    def what_is_refused_is_never_live(self) -> None:
        if self.state is not None:
            assert self.state.live is None or self.state.live not in self.state.refused
            assert self.state.candidate not in self.state.refused
            assert self.refused_ever >= self.state.refused.keys()

    @invariant()
    def what_is_wanted_is_what_is_named(self) -> None:
        if self.document is not None:
            named = {self.document.live, self.document.previous, self.document.candidate} - {None}
            assert set(self.document.wanted) == named

    @invariant()
    def a_suspect_is_refused_unless_it_is_live(self) -> None:
        if self.state is not None and self.state.hold is not None:
            suspects = {v for v in self.built if self.state.hold.suspects_version(v)}
            restored = {self.state.candidate} if self.state.restoring else set[int | None]()
            assert suspects - {self.state.live, self.state.spared} - restored <= self.state.refused.keys()

    @invariant()
    def a_hold_lets_nothing_but_the_rollback_in(self) -> None:
        if self.state is not None and self.state.promotion_paused:
            assert self.state.candidate is None or self.state.restoring


Release.TestCase.settings = settings(max_examples=100, stateful_step_count=50, deadline=None)
TestRelease = Release.TestCase
