"""The master's own steps of a save: what needs the store, done without the coordinator's lock."""

import logging
import time

import numpy as np

from elastic_ctr.config.data import Data
from elastic_ctr.config.model import Model
from elastic_ctr.config.roles import MasterConfig
from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master.checkpoint_files import (
    PublishRefused,
    commit_checkpoint,
    commit_version,
    entries,
    judge,
    merged_rows,
)
from elastic_ctr.master.coordinator import Coordinator
from elastic_ctr.master.ledger_rows import PassRow, SaveRow
from elastic_ctr.master.retention import Retention
from elastic_ctr.store import Store, StoreError
from elastic_ctr.versions import layout
from elastic_ctr.versions.donefile import announce
from elastic_ctr.versions.manifest import CheckpointManifest, VersionManifest, published_versions

log = logging.getLogger(__name__)


class Publisher:
    """Commits checkpoints and versions: manifest last, donefile after it."""

    def __init__(self, coordinator: Coordinator, store: Store, data: Data, model: Model, config: MasterConfig) -> None:
        self._coordinator = coordinator
        self._store = store
        self._data = data
        self._model = model
        self._config = config
        self._retention = Retention(coordinator, store, config.keep_checkpoints)

    def begin(self) -> None:
        """What happened to the store while nobody looked: versions were lost, or a crash came between a manifest and its
        donefile line, or left a checkpoint that nobody comes back to.
        """
        try:
            self._coordinator.versions_found(published_versions(self._store))
        except StoreError as failed:
            log.warning("which versions are in the store is not known yet: %s", failed)
        try:
            announce(self._store)
        except (StoreError, ValueError) as failed:
            log.warning("donefiles are not up to date: %s", failed)
        self._retention.sweep()

    def step(self) -> bool:
        """Do what is due; whether anything was. Raises StoreError: try again later."""
        due = self._coordinator.open_save()
        if due is None:
            return False
        current, save, results, saved = due
        if save.stage == "written":
            self._written(current, save, results)
        else:
            self._scored(current, save, results, saved)
        self._retention.sweep()
        return True

    def _written(self, current: PassRow, save: SaveRow, results: list[control.JobResult]) -> None:
        if save.kind is not None:
            try:
                self._coordinator.left_out(save)
            except PublishRefused as refused:
                self._commit_checkpoint(current, save, results)
                self._coordinator.version_committed(save, 0, refused=str(refused))
                return
        if save.kind != "base":
            self._commit_checkpoint(current, save, results)
        self._coordinator.files_judged(save)

    def _scored(
        self, current: PassRow, save: SaveRow, results: list[control.JobResult], saved: control.SaveResult
    ) -> None:
        if save.version is None or save.kind is None:
            raise AssertionError("only a save with a version is scored")
        refused, keys = saved.refused, 0
        if not refused:
            try:
                samples = self._coordinator.samples_of(current.ordinal)
                live = np.frombuffer(saved.live, "<f4")
                published = np.frombuffer(saved.published, "<f4")
                auc_live, auc_published = judge(live, published, samples, self._config.max_publish_loss)
                manifest = self._manifest(current, save, results, saved, auc_live, auc_published)
                keys = manifest.keys
                commit_version(self._store, manifest)
            except PublishRefused as wrong:
                refused = str(wrong)
        if save.kind == "base":
            # After the version: no recovery may come back to before the base that this checkpoint follows.
            self._commit_checkpoint(current, save, results, refused=bool(refused))
        self._coordinator.version_committed(save, keys, refused=refused)

    def _manifest(
        self,
        current: PassRow,
        save: SaveRow,
        results: list[control.JobResult],
        saved: control.SaveResult,
        auc_live: float | None,
        auc_published: float | None,
    ) -> VersionManifest:
        version, kind = save.version or 0, save.kind or "base"
        with self._coordinator.locked():
            ledger = self._coordinator.reading()
            follows, base = ledger.get("follows"), ledger.get("base")
        files = [f for result in results for f in result.files if f.path.startswith(layout.cube_folder(version, kind))]
        cube_files = entries(files)
        if len(cube_files) != self._model.partitions:
            raise AssertionError(
                f"version {version} has {len(cube_files)} files for {self._model.partitions} partitions"
            )
        return VersionManifest(
            version=version,
            kind="base" if kind == "base" else "delta",
            base=version if kind == "base" else int(base),
            parent=None if kind == "base" else int(follows),
            pass_id=current.id,
            event_time_max=current.event_time_max,
            created_at=round(time.time(), 3),
            partitions=self._model.partitions,
            dim=self._model.embedding_dim,
            keys=sum(entry.records for entry in cube_files),
            slots=self._data.slots,
            sparse_dim=self._model.sparse_dim,
            network=self._model.network,
            cube_files=cube_files,
            model_files=entries(saved.model_files),
            samples=len(np.frombuffer(saved.live, "<f4")),
            auc_live=auc_live,
            auc_published=auc_published,
            left_out=self._coordinator.left_out(save),
        )

    def _commit_checkpoint(
        self, current: PassRow, save: SaveRow, results: list[control.JobResult], *, refused: bool = False
    ) -> None:
        if save.checkpoint is None:
            return
        with self._coordinator.locked():
            ledger = self._coordinator.reading()
            follows, base = ledger.get("follows"), ledger.get("base")
        with_version = save.kind == "base" and save.stage == "scored" and not refused
        if with_version:
            follows = base = save.version
        folder = layout.checkpoint_folder(save.checkpoint)
        mine = [result for result in results if any(f.path.startswith(folder + "/") for f in result.files)]
        manifest = CheckpointManifest(
            name=save.checkpoint,
            pass_id=current.id,
            pass_ordinal=current.ordinal,
            follows_version=follows,
            base_version=base,
            created_at=round(time.time(), 3),
            partitions=self._model.partitions,
            rows=merged_rows(mine),
            files=entries(f for result in mine for f in result.files),
        )
        commit_checkpoint(self._store, manifest)
        if not with_version:
            self._coordinator.checkpoint_committed(save, follows, base)
        log.info("checkpoint %s is committed: %d rows", manifest.name, sum(manifest.rows.values()))
