"""Documents that other systems and people may write: donefiles, manifests, refusals, transfer's state, reports, values files."""

import json
import logging
import re
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastic_ctr.config.cube_settings import CubeTransferConfig
from elastic_ctr.config.load import ConfigRefused, load
from elastic_ctr.config.values_file import Values
from elastic_ctr.cube.placement import abandoned_versions, holders_by_version, next_to_build, versions_to_delete
from elastic_ctr.cube.release import (
    AgentReport,
    BuildOrder,
    Holder,
    Placement,
    ReaderReport,
    ReleaseDocument,
    RollbackOrder,
)
from elastic_ctr.cube.transfer import state as rules_of
from elastic_ctr.cube.transfer import state_file
from elastic_ctr.cube.transfer.catalog import Catalog, followed_by_checkpoints
from elastic_ctr.cube.transfer.state import ReleaseState, StepTimes, View
from elastic_ctr.cube.transfer.state_file import PersistedState, StateFile
from elastic_ctr.runtime.auth import tokens_in
from elastic_ctr.runtime.documents import DocumentDamaged, read_document
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.donefile import Announcement
from elastic_ctr.store.versions.manifest import (
    CheckpointManifest,
    DictionaryManifest,
    FileEntry,
    Record,
    VersionManifest,
)
from elastic_ctr.store.versions.safeguards import Refusal, read_refusals
from fuzz.mutation import Mutator

_GOOD = 40
_WORD = re.compile(rb'"[^"]*"|[0-9]+|true|null|\[\]|\{\}')
_WORDS = [
    b"null", b"-1", b"0", b"1e999", b"-1e999", b"1e308", b"NaN", b"[]", b"{}", b'""', b'"1"', b"1" * 20, b"9" * 5000,
    b"[" * 400, b'{"a":' * 400, b"\\ud800", b'"\\ud800"', b"true", b"10", b"20", b"30", b"\xff", b"9007199254740993",
]  # fmt: skip


class _Words:
    """Puts a word in another's place, so that the text often stays JSON, and then changes bytes."""

    def __init__(self, seed: int) -> None:
        self.mutator = Mutator(seed)

    def changed(self, golden: bytes, others: Sequence[bytes]) -> bytes:
        draw = self.mutator.random
        text = golden
        for _ in range(draw.choice((0, 1, 1, 2))):
            words = list(_WORD.finditer(text))
            if words:
                found = draw.choice(words)
                text = text[: found.start()] + draw.choice(_WORDS) + text[found.end() :]
        return self.mutator.mutated(text, (), others) if draw.random() < 0.4 else text


def _manifest(version: int, parent: int | None = None) -> VersionManifest:
    kind: Any = "base" if parent is None else "delta"
    entry = FileEntry(path=layout.cube_file(version, kind, 0, 1), bytes=1, sha256="0" * 64, records=1)
    return VersionManifest(
        version=version, kind=kind, base=version if parent is None else 10, parent=parent, pass_id="p",
        event_time_max=1, created_at=1.5, partitions=1, dim=2, keys=1, slots=("0",), sparse_dim=None, network="n",
        cube_files=(entry,), model_files=(), samples=0, auc_live=0.5, auc_published=None,
    )  # fmt: skip


def _dictionary(version: int) -> DictionaryManifest:
    entry = FileEntry(path=layout.dictionary_part(version, 0), bytes=1, sha256="0" * 64)
    return DictionaryManifest(
        version=version, kind="full", full_version=version, base=version, parent=None, partitions=1, dim=2, keys=1,
        files=(entry,),
    )  # fmt: skip


def _checkpoint(name: str) -> CheckpointManifest:
    return CheckpointManifest(
        name=name, pass_id="p", pass_ordinal=1, follows_version=20, base_version=10, created_at=1.0, partitions=1,
        rows={0: 1}, files=(),
    )  # fmt: skip


def _line(version: int, base: int) -> bytes:
    return Announcement(id=version, key=base, input="/x").to_line().encode() + b"\n"


class PublishedFiles:
    """What cube-transfer reads in the store. The oracle: one version with whole files may always be built."""

    name = "published-files"

    def __init__(self, seed: int) -> None:
        self._words = _Words(seed)
        self._folder = tempfile.TemporaryDirectory()
        self._store = FileStore(Path(self._folder.name))
        for version, kind in ((10, "base"), (20, "delta"), (30, "delta"), (_GOOD, "base")):
            self._store.put_bytes(b"x", layout.cube_file(version, kind, 0, 1))
        self._put(layout.version_manifest(_GOOD), _manifest(_GOOD).to_json())
        self._files = {
            layout.BASE_DONEFILE: _line(10, 10),
            layout.PATCH_DONEFILE: _line(20, 10) + _line(30, 10),
            layout.version_manifest(10): _manifest(10).to_json(),
            layout.version_manifest(20): _manifest(20, 10).to_json(),
            layout.version_manifest(30): _manifest(30, 20).to_json(),
            layout.dictionary_manifest(10): _dictionary(10).to_json(),
            layout.checkpoint_manifest("a-g1"): _checkpoint("a-g1").to_json(),
            layout.refusal(20): Refusal(version=20, reason="x", refused_at=1.0).to_json(),
        }

        for path, text in self._files.items():
            self._put(path, text)

    def batch(self, count: int) -> int:
        """How many scans found no problem."""
        whole = 0
        for _ in range(count):
            changed = self._words.mutator.random.sample(sorted(self._files), 2)
            for path in changed:
                text = self._words.changed(self._files[path], list(self._files.values()))
                self._put(path, text + b"\n" + _line(_GOOD, _GOOD) if path == layout.BASE_DONEFILE else text)
            scan = Catalog(self._store).scan()
            assert _GOOD in scan.usable or not self._announced(), scan
            refused = read_refusals(self._store)
            assert layout.refusal(20) not in self._store.list(layout.REFUSED) or 20 in refused
            if self._announced():
                assert next_to_build(scan.usable, scan.dictionaries, 10, refused) == _GOOD
            abandoned_versions(scan.manifests)
            followed = followed_by_checkpoints(self._store)
            in_use = followed.parents | followed.log
            assert _GOOD not in versions_to_delete(scan.manifests, scan.dictionaries, in_use, 2, scan.unread)
            json.dumps(scan.problems, ensure_ascii=False).encode()
            whole += not scan.problems
            for path in changed:
                self._put(path, self._files[path])
        return whole

    def _announced(self) -> bool:
        return _line(_GOOD, _GOOD) in self._store.get_bytes(layout.BASE_DONEFILE)

    def _put(self, path: str, data: bytes) -> None:
        file = self._store.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


class ReleaseStates:
    """cube-transfer's state file: whatever it holds, transfer goes on, from it or as after its loss."""

    name = "release-state"

    def __init__(self, seed: int) -> None:
        self._words = _Words(seed)
        self._folder = tempfile.TemporaryDirectory()
        self._file = StateFile(Path(self._folder.name))
        logging.getLogger(state_file.__name__).disabled = True
        times = {20: StepTimes(published=1.0, seen=2.0, built=3.0, candidate=4.0, complete=5.0)}
        state = ReleaseState(
            generation=3, live=10, candidate=20, complete_since=5.0, refused={30: "x"}, was_live=(10,), times=times
        )
        self._golden = PersistedState(state=state, revisions=2000, agents=(_agent(),)).to_json()

    def batch(self, count: int) -> int:
        """How many files were taken."""
        taken = 0
        for _ in range(count):
            self._file.path.write_bytes(self._words.changed(self._golden, ()))
            found = self._file.read()
            assert (found is None) != self._file.path.exists()
            state = rules_of.state_after_loss(None) if found is None else found.state
            agents = [_agent()] if found is None else list(found.agents)
            _decide(state, agents)
            taken += found is not None
        return taken


class ReleaseMessages:
    """What roles send each other: release document, reports, orders."""

    name = "release-messages"

    def __init__(self, seed: int) -> None:
        self._words = _Words(seed)
        document = ReleaseDocument(
            generation=3, revision=7, placement=Placement(shards=2, up=(0, 1)), wanted=(20, 10), candidate=20, live=10,
            refused={30: "x"}, holders={10: {"127.0.0.1:1": Holder(partitions=(0,), shard=0)}},
        )  # fmt: skip
        reader = ReaderReport(pod="s-0", validated=(10,), refused={20: "x"}, max_abs_diff={10: 1e-7}, document=document)
        golden: list[Record] = [document, _agent(document), reader, RollbackOrder(version=10), BuildOrder(version=10)]
        self._goldens: list[tuple[type[Record], bytes]] = [(type(each), each.to_json()) for each in golden]

    def batch(self, count: int) -> int:
        """How many messages were understood."""
        understood = 0
        for _ in range(count):
            kind, golden = self._words.mutator.random.choice(self._goldens)
            try:
                message = read_document(kind, self._words.changed(golden, [text for _, text in self._goldens]))
            except DocumentDamaged as damaged:
                str(damaged).encode()
                continue
            understood += 1
            assert read_document(kind, message.to_json()) == message
            document = message if isinstance(message, ReleaseDocument) else getattr(message, "document", None)
            if document is not None:
                document.addresses()
                _decide(rules_of.state_after_loss(document), [_agent()])
            if isinstance(message, AgentReport):
                _decide(ReleaseState(generation=1, live=10, candidate=20), [message])
        return understood


class ValuesFiles:
    """Values files and token files: settings, or one sentence."""

    name = "values-file"

    def __init__(self, seed: int) -> None:
        self._words = _Words(seed)
        self._folder = tempfile.TemporaryDirectory()
        self._file = Path(self._folder.name) / "values.yaml"
        self._golden = (
            b'data:\n  source: {url: "file:///x"}\n  path: /train\n  start: 20200401/00\n  slots: ["0", "1"]\n'
            b"model: {embeddingDim: 9, sparseDim: null, partitions: 60}\ncube: {config: {shards: 2}}\n"
            b"trainer: {replicas: 2, config: {batchSize: 512}}\n"
        )
        self._pieces = [
            b"&a [*a]\n",
            b"2001-99-99",
            b"!!python/object:os.system x",
            b"? [a]\n",
            b"<<: 1",
            b"*x",
            b"0x",
            b"1:99",
        ]

    def batch(self, count: int) -> int:
        """How many files were understood."""
        understood = 0
        for _ in range(count):
            text = self._words.changed(self._golden, [self._golden])
            draw = self._words.mutator.random
            if draw.random() < 0.2:
                at = draw.randrange(len(text) + 1)
                text = text[:at] + draw.choice(self._pieces) + text[at:]
            self._file.write_bytes(text)
            try:
                load(Values, self._file)
            except ConfigRefused:
                pass
            else:
                understood += 1
            try:
                found = tokens_in(text, str(self._file))
            except ValueError:
                continue
            assert 1 <= len(found) <= 2
            assert all(word.isascii() for token in found for word in token)
        return understood


def _agent(document: ReleaseDocument | None = None) -> AgentReport:
    return AgentReport(
        pod="c-s0-0", address="127.0.0.1:1", shard=0, loaded={10: (0,), 20: (0,)}, document=document, refused={30: "x"}
    )


def _decide(state: ReleaseState, agents: list[AgentReport]) -> None:
    """As transfer does with what it has read; every result can be written and sent."""
    holders = holders_by_version(agents)
    view = View(
        now=time.time(), built={10: _dictionary(10), 20: _dictionary(20)}, holders=holders, readers=[], damaged={},
        agents=agents, placement=Placement(shards=1, up=(0,)),
    )  # fmt: skip
    after = rules_of.advance(state, view, CubeTransferConfig())
    document = rules_of.document_of(after, 1, view.placement, holders)
    assert read_document(ReleaseDocument, document.to_json()) == document
    assert (
        read_document(PersistedState, PersistedState(state=after, revisions=1, agents=tuple(agents)).to_json()).state
        == after
    )
