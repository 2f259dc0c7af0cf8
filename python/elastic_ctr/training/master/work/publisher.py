"""The master's own steps of a save, which call the store without the coordinator's lock."""

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from elastic_ctr.config.feature_document import FILE
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.formats.value_kind import kind_of
from elastic_ctr.store.backends import AlreadyPublished, NotInStore, Store, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.donefile import Announcement, announce
from elastic_ctr.store.versions.manifest import (
    Arrival,
    CheckpointManifest,
    ManifestDamaged,
    StreamPosition,
    VersionManifest,
)
from elastic_ctr.store.versions.published_files import is_orphan, published_versions, read_checkpoint, read_version
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.calendar.quality_gate import (
    MOST_REFUSED,
    limits_of,
    refuse_equal_scores,
    refuse_worse,
    refuse_worse_than_constant,
)
from elastic_ctr.training.master.calendar.stream_schedule import following_after, in_records, ranges_in
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.decisions import DecisionLock
from elastic_ctr.training.master.generations.checkpoint_files import (
    PublishRefused,
    checkpoint_name,
    entries,
    judge,
    merged_rows,
)
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import CompactionRow, PassRow, SaveRow
from elastic_ctr.training.master.saves.checkpointing import published_of, results_of, saved_of
from elastic_ctr.training.master.saves.planning import LogPlan
from elastic_ctr.training.master.work.archiver import Archiver, archiver_of
from elastic_ctr.training.master.work.start_from import trained_model

log = logging.getLogger(__name__)


class Publisher:
    """Commits checkpoints and versions: the manifest after all files, the donefile after the manifest."""

    def __init__(self, coordinator: Coordinator, store: Store, settings: MasterFile) -> None:
        self._coordinator = coordinator
        self._lock = coordinator.lock
        self._saves = coordinator.saves
        self._store = store
        self._settings = settings
        # Cached manifests of the deltas in the last checkpoint by log.
        self._read: dict[int, VersionManifest] = {}
        self._announced: dict[int, Announcement] = {}
        self.archiver = archiver_of(settings, coordinator.lock, store)
        keep = settings.master.keep_checkpoints
        self._retention = CheckpointRetention(coordinator.lock, store, keep, archiver=self.archiver)

    def begin(self) -> None:
        """Repair the store after a restart: versions may be lost, the donefile may lack a version that was committed before a crash, and
        unneeded checkpoints may be left.
        """
        try:
            self._coordinator.versions_found(published_versions(self._store))
        except StoreError as failed:
            log.warning("the versions in the store cannot be listed yet: %s", failed)
        try:
            self._announced = announce(self._store, self._announced)
        except (StoreError, ValueError) as failed:
            log.warning("donefiles are not up to date: %s", failed)
        self._retention.sweep()

    def step(self) -> bool:
        """Take the next step that is due. Return True if there was one. Raises StoreError; call again later."""
        with self._lock.writing():
            due = self._saves.due()
        if due is None:
            return self._compact()
        current, save = due
        if save.stage == "written":
            self._written(current, save)
        else:
            self._scored(current, save)
        self._retention.sweep()
        return True

    def _written(self, current: PassRow, save: SaveRow) -> None:
        if save.kind is not None:
            try:
                if not save.by_key:
                    published_of(save, self._settings.model.embedding_dim)
                with self._lock.reading() as ledger:
                    after = ledger.figures.quality(current.ordinal).after
                    expected = ledger.figures.expected(
                        current.ordinal,
                        MOST_REFUSED,
                        stream=self._settings.data.is_stream,
                        first=ledger.facts.compared_from,
                    )
                stream = self._settings.data.stream
                limits = limits_of(self._settings.master.max_quality_loss, stream.late_clicks)
                refuse_worse(current, after, expected, limits)
                refuse_worse_than_constant(current, after, late_clicks=stream.late_clicks)
            except PublishRefused as refused:
                self._commit_checkpoint(current, save)
                self._coordinator.version_committed(save, 0, refused=str(refused))
                return
        if save.kind != "base":
            self._commit_checkpoint(current, save)
        self._coordinator.files_judged(save)

    def _scored(self, current: PassRow, save: SaveRow) -> None:
        refused, keys = saved_of(save).refused, 0
        if not refused:
            try:
                manifest = self._manifest(current, save)
                keys = manifest.keys
                # The manifest is the commit; the donefile announces it.
                self._put_once(layout.version_manifest(manifest.version), manifest.to_json())
                self._announced = announce(self._store, self._announced)
            except PublishRefused as wrong:
                refused = str(wrong)
        if save.kind == "base":
            # After the version, because the checkpoint names the base as the version that it follows.
            self._commit_checkpoint(current, save, refused=bool(refused))
        plan = None
        if not refused:
            with self._lock.writing():
                plan = self._coordinator.planning.log_due(save)
        if plan is not None:
            try:
                self._write_log(current, save, plan)
            except (NotInStore, ManifestDamaged) as gone:
                log.warning("no checkpoint by log is made after pass %s: %s", current.id, gone)
                plan = None
        self._coordinator.version_committed(save, keys, refused=refused, log_on=plan.stands_on if plan else "")

    def _write_log(self, current: PassRow, save: SaveRow, plan: LogPlan) -> None:
        """Write the manifest of a checkpoint by log, which has no files of its own."""
        saved = read_checkpoint(self._store, plan.stands_on)
        versions = {each: self._read.get(each) or read_version(self._store, each) for each in plan.versions}
        self._read = versions
        newest = versions[plan.versions[-1]]
        network = [each for each in newest.model_files if each.path in layout.network_files(newest.version)]
        deltas = [
            file for each in versions.values() for file in (*each.cube_files, *([each.counts] if each.counts else ()))
        ]
        manifest = saved.model_copy(
            update={
                "stream": self._position(current),
                "name": checkpoint_name(current, save.generation),
                "pass_id": current.id,
                "pass_ordinal": current.ordinal,
                "follows_version": newest.version,
                "base_version": newest.base,
                "created_at": round(time.time(), 3),
                "rows": {},
                "files": (*saved.files, *deltas, *network),
                "shift": 0.0 if newest.learning is None else newest.learning.shift,
                "stands_on": saved.name,
                "log": plan.versions,
            }
        )
        self._put_once(layout.checkpoint_manifest(manifest.name), manifest.to_json())

    def _compact(self) -> bool:
        """Commit a due compaction. Return True if there was one. The checkpoint comes first: cube-transfer keeps the base that it names."""
        with self._lock.reading():
            due = self._saves.compaction.due()
        if due is None:
            return False
        row, results = due
        try:
            log_of, version = read_checkpoint(self._store, row.log_of), read_version(self._store, row.follows)
            base = self._compacted_base(row, version, results)
        except (NotInStore, ManifestDamaged) as gone:
            with self._lock.writing() as ledger:
                if ledger.facts.compaction == row:
                    self._saves.compaction.drop(str(gone))
            return True
        network = [each for each in base.model_files if each.path in layout.network_files(base.version)]
        mine = [each for each in results if each.rows]
        folder = layout.checkpoint_folder(row.name)
        files = entries(f for result in results for f in result.files if f.path.startswith(f"{folder}/"))
        checkpoint = log_of.model_copy(
            update={
                "name": row.name, "follows_version": base.version, "base_version": base.version,
                "created_at": round(time.time(), 3), "rows": merged_rows(mine), "files": (*files, *network),
                "stands_on": row.name, "log": (),
            }
        )  # fmt: skip
        self._put_once(layout.checkpoint_manifest(row.name), checkpoint.to_json())
        self._put_once(layout.version_manifest(base.version), base.to_json())
        self._announced = announce(self._store, self._announced)
        with self._lock.writing():
            self._saves.compaction.commit(row, base.keys)
        self._retention.sweep()
        return True

    def _compacted_base(
        self, row: CompactionRow, version: VersionManifest, results: Sequence[control.JobResult]
    ) -> VersionManifest:
        """Copy a version's model files and return its manifest as a new base. Raises NotInStore, StoreError."""
        folder = layout.cube_folder(row.version, "base")
        cube_files = entries(f for result in results for f in result.files if f.path.startswith(f"{folder}/"))
        if len(cube_files) != version.partitions:
            raise AssertionError(f"base {row.version} has {len(cube_files)} files for {version.partitions} partitions")
        model_files = []
        for each in version.model_files:
            path = each.path.replace(layout.model_folder(version.version), layout.model_folder(row.version), 1)
            self._put_once(path, self._store.get_bytes(each.path))
            model_files.append(each.model_copy(update={"path": path}))
        return version.model_copy(
            update={
                "version": row.version, "kind": "base", "base": row.version, "parent": None, "compacts": version.version,
                "created_at": round(time.time(), 3), "keys": sum(entry.records for entry in cube_files),
                "cube_files": cube_files, "model_files": tuple(model_files), "counts": None,
            }
        )  # fmt: skip

    def _manifest(self, current: PassRow, save: SaveRow) -> VersionManifest:
        """Return the version's manifest. Raises PublishRefused."""
        if save.version is None or save.kind is None:
            raise AssertionError("only a save with a version is scored")
        model, saved = self._settings.model, saved_of(save)
        live, published = np.frombuffer(saved.live, "<f4"), np.frombuffer(saved.published, "<f4")
        with self._lock.reading():
            samples = self._saves.samples_of(current.ordinal)
        auc_live, auc_published = judge(live, published, samples, self._settings.master.max_publish_loss)
        refuse_equal_scores(current, live, samples)
        with self._lock.reading() as ledger:
            facts, quality = ledger.facts, ledger.figures.quality(current.ordinal)
            learned = ledger.figures.learned(current.ordinal, current.ordinal)[current.ordinal]
            arrivals = _arrivals(ledger, current)
        counts = entries([saved.counts_file]) if save.by_key else ()
        folder, is_base = layout.cube_folder(save.version, save.kind), save.kind == "base"
        written = saved.cube_files if save.by_key else [f for each in results_of(save) for f in each.files]
        cube_files = entries(f for f in written if f.path.startswith(folder))
        if len(cube_files) != (1 if save.by_key else model.partitions):
            found = f"{len(cube_files)} files for {model.partitions} partitions"
            raise AssertionError(f"version {save.version} has {found}")
        model_files = entries(saved.model_files)
        ranges = ranges_in(current.splits) if self._settings.data.is_stream else []
        offsets = {name: (start, stop) for name, start, stop in ranges}
        return VersionManifest(
            version=save.version,
            kind="base" if is_base else "delta",
            base=save.version if is_base else facts.base,
            parent=None if is_base else facts.follows,
            pass_id=current.id,
            # For a stream this is a time of the ledger, which `clock_moved` converts to wall time.
            event_time_max=current.event_time_max + (round(facts.clock_moved) if self._settings.data.is_stream else 0),
            created_at=round(time.time(), 3),
            partitions=model.partitions,
            dim=model.embedding_dim,
            keys=sum(entry.records for entry in cube_files),
            slots=self._settings.input.slots,
            averaged=self._settings.input.averaged,
            numbers=self._settings.input.numbers,
            features=next((each.sha256 for each in model_files if each.path.endswith(f"/{FILE}")), None),
            sparse_dim=model.sparse_dim,
            network=model.network.name,
            cube_files=cube_files,
            model_files=model_files,
            samples=len(live),
            auc_live=auc_live,
            auc_published=auc_published,
            left_out=0 if save.by_key else published_of(save, model.embedding_dim).left_out,
            values=kind_of(saved.values_kind),
            quantised_diff=saved.quantised_diff,
            quality=quality,
            learning=learned,
            offsets=offsets,
            arrivals=arrivals,
            counts=next(iter(counts), None),
        )

    def _commit_checkpoint(self, current: PassRow, save: SaveRow, *, refused: bool = False) -> None:
        if save.checkpoint is None:
            return
        with self._lock.reading() as ledger:
            follows, base, offset = ledger.facts.follows, ledger.facts.base, ledger.facts.offset or 0.0
            shift, mid = (
                ledger.figures.learning(current.ordinal).shift,
                self._coordinator.mid_pass.mid_pass_state(save) is not None,
            )
        with_version = save.kind == "base" and save.stage == "scored" and not refused
        if with_version:
            follows = base = save.version
        folder = layout.checkpoint_folder(save.checkpoint)
        mine = [each for each in results_of(save) if any(f.path.startswith(folder + "/") for f in each.files)]
        manifest = CheckpointManifest(
            name=save.checkpoint,
            pass_id=current.id,
            pass_ordinal=current.ordinal,
            follows_version=follows,
            base_version=base,
            created_at=round(time.time(), 3),
            partitions=self._settings.model.partitions,
            rows=merged_rows(mine),
            files=entries(f for result in mine for f in result.files),
            mid=mid,
            offset=offset,
            shift=shift,
            model=trained_model(self._settings.model, self._settings.input),
            # In mid pass the table has some of its offsets, so there is no position.
            stream=None if mid else self._position(current),
        )
        self._put_once(layout.checkpoint_manifest(manifest.name), manifest.to_json())
        if not with_version:
            with self._lock.writing():
                self._saves.commit_checkpoint(save, follows, base, self._coordinator.mid_pass.mid_pass_state(save))
        log.info("checkpoint %s is committed: %d rows", manifest.name, sum(manifest.rows.values()))

    def _position(self, current: PassRow) -> StreamPosition | None:
        """Return the position in the stream after this pass; None for hours."""
        data = self._settings.data
        if not data.is_stream:
            return None
        with self._lock.reading() as ledger:
            places = ledger.facts.stream
            return StreamPosition(
                url=data.source.url,
                following=following_after(ledger, current.ordinal),
                files={} if places is None else places.files,
            )

    def _put_once(self, path: str, data: bytes) -> None:
        # An existing file was written by this master before a restart, because ids and names are never reused.
        with suppress(AlreadyPublished):
            self._store.put_bytes(data, path)


class CheckpointRetention:
    """Deletes checkpoints that no recovery needs, at start and after each save. No other role deletes them.

    Checkpoints of the ledger: it keeps the newest `keepCheckpoints` of whole passes and newer mid-pass ones, and deletes the rest.
    Other folders: it deletes one without a manifest that has not changed for a day (an interrupted upload), and one whose manifest is
    older than the last committed checkpoint (a recovery or a new ledger has superseded it). Newer ones stay, because the older ledger
    may be restored until this ledger commits something. The checkpoint that is being archived stays.
    """

    def __init__(
        self,
        lock: DecisionLock,
        store: Store,
        keep: int,
        clock: Callable[[], float] = time.time,
        archiver: Archiver | None = None,
    ) -> None:
        self._lock = lock
        self._archiver = archiver
        self._store = store
        self._keep = keep
        self._clock = clock

    def sweep(self) -> None:
        with self._lock.reading() as ledger:
            rows, damaged = ledger.saves.checkpoints(), ledger.saves.damaged_checkpoints()
            current = ledger.passes.current()
            save = None if current is None else ledger.saves.of(current.ordinal)
            compaction = ledger.facts.compaction
        writing = {*([] if save is None else [save.checkpoint]), *([] if compaction is None else [compaction.name])}
        needed = [] if compaction is None else [compaction.log_of, compaction.name]
        needed += [] if self._archiver is None else [self._archiver.copying]
        needed += [row["stands_on"] for row in rows if row["name"] in needed]
        named = [row["name"] for row in (*damaged, *rows)]
        try:
            for name in (*superseded(rows, self._keep, needed), *outlived(damaged, rows, self._keep)):
                delete_checkpoint(self._store, name)
                with self._lock.writing() as ledger:
                    ledger.saves.remove_checkpoint(name)
            for name in unnamed(self._store, named, writing, self._clock()):
                delete_checkpoint(self._store, name)
                log.info("checkpoint %s is deleted from the store: the ledger does not name it", name)
        except StoreError as failed:
            log.warning("old checkpoints cannot be deleted: %s", failed)


def superseded(rows: Sequence[Mapping[str, Any]], keep: int, needed: Collection[str] = ()) -> list[str]:
    """Return the names of checkpoints that no recovery and no compaction needs, from the ledger's `rows`, oldest first."""
    saved = [row for row in rows if not row["stands_on"]]
    whole = [number for number, row in enumerate(saved) if not row["mid"]]
    if not whole:
        return []
    # The newest checkpoint by log on a save has the deltas of the older ones.
    stay = set(whole[-keep:])
    gone = [
        row["name"] for number, row in enumerate(saved[: whole[-1]]) if number not in stay and row["name"] not in needed
    ]
    newest = {row["stands_on"]: row["name"] for row in rows}
    logs = [row for row in rows if row["stands_on"] and row["name"] not in needed]
    left = {row["name"] for row in saved} - set(gone)
    # Checkpoints by log first, so that an interrupted sweep leaves none without its save.
    return [
        *(row["name"] for row in logs if row["stands_on"] not in left or newest[row["stands_on"]] != row["name"]),
        *gone,
    ]


def outlived(damaged: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], keep: int) -> list[str]:
    """Return the names of set-aside checkpoints for which the ledger has `keep` newer ones of whole passes."""
    whole = [row["pass"] for row in rows if not row["mid"] and not row["stands_on"]]
    return [row["name"] for row in damaged if sum(ordinal > row["pass"] for ordinal in whole) >= keep]


def delete_checkpoint(store: Store, name: str) -> None:
    """Delete a checkpoint, its manifest first, without which the folder is none. Raises StoreError."""
    store.delete(layout.checkpoint_manifest(name))
    store.delete(layout.checkpoint_folder(name))


def unnamed(store: Store, named: Sequence[str], writing: Collection[str | None], now: float) -> Iterator[str]:
    """Yield the checkpoints in the store that the ledger does not name and that are to be deleted. Raises StoreError.

    `named` are the ledger's, oldest first; `writing` are those of the save and of the compaction under way.
    """
    others = [name[:-1] for name in store.list(layout.CHECKPOINTS) if name.endswith("/")]
    others = [name for name in others if name not in named and name not in writing]
    committed_at = _created_at(store, named[-1], copies=False) if others and named else None
    for name in others:
        created_at = _created_at(store, name)
        if created_at is None:
            if is_orphan(store, layout.checkpoint_folder(name), now):
                yield name
        elif committed_at is not None and created_at < committed_at:
            yield name


def _created_at(store: Store, name: str, *, copies: bool = True) -> float | None:
    """Return a checkpoint's creation time in Unix seconds, or None without a readable manifest. Without `copies`, also None for the
    copy that a model started from, which does not show that its ledger has committed anything.
    """
    try:
        manifest = read_checkpoint(store, name)
    except (NotInStore, ManifestDamaged):
        return None
    return manifest.created_at if copies or manifest.origin is None else None


def _arrivals(ledger: Ledger, current: PassRow) -> tuple[Arrival, ...]:
    """Return the arrivals of the last passes up to this one. The ledger may already have those of the next pass."""
    places = ledger.facts.stream
    came = [] if places is None else [each for each in places.arrivals if each.ordinal <= current.ordinal]
    if not came:
        return ()
    counts = ledger.passes.counts_by_pass(came[0].ordinal, current.ordinal)
    return in_records(came, {ordinal: each["records"] for ordinal, each in counts.items()})
