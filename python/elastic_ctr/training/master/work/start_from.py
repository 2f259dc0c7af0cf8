"""`model.startFrom`: a new ledger begins with a copy of another model's checkpoint.

The checkpoint is chosen before the ledger has an id, and again only if it is deleted before it is copied. The copy is in this
model's own store, so recoveries do not depend on the other store. The master copies before it answers trainers and pservers. If it
is restarted meanwhile, it continues with the missing files.
"""

import logging
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from elastic_ctr.config.feature_document import FeaturesDamaged, read_features
from elastic_ctr.config.feature_program import NeedsStatistics, OtherStatistics, measured_inputs, transformer_of
from elastic_ctr.config.features import Features
from elastic_ctr.config.model import Model, ModelInput, StartFrom, digest_of_network
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.config.statistics import numbers_read_otherwise
from elastic_ctr.features.statistics.document import Statistics, series_of
from elastic_ctr.formats.blocks import lines_in_range, open_lines
from elastic_ctr.runtime.status.master_status import StartedFromStatus
from elastic_ctr.store.backends import NotInStore, Store, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.layout import NETWORK, NETWORK_FOLDER
from elastic_ctr.store.versions.manifest import (
    CheckpointManifest,
    FileEntry,
    ManifestDamaged,
    Origin,
    TrainedModel,
    VersionManifest,
)
from elastic_ctr.store.versions.pinned_statistics import publish_statistics
from elastic_ctr.store.versions.published_files import checked_file, published_versions, read_checkpoint, read_version
from elastic_ctr.store.versions.safeguards import read_refusals
from elastic_ctr.training.export.published import layout_of, publish_once
from elastic_ctr.training.master.calendar.quality_gate import MOST_COMPARED
from elastic_ctr.training.master.calendar.stream_schedule import is_same_stream
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.generations.checkpoint_files import last_possible
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import StartedFrom, StreamPlaces, WindowQuality

log = logging.getLogger(__name__)

_KEY = "model.startFrom"
_AGAIN_SECONDS = 5.0
_COPIES = 4
_NAMED = 5


def trained_model(model: Model, given: ModelInput) -> TrainedModel:
    """Return the description of this model for its checkpoints."""
    return TrainedModel(
        embedding_dim=model.embedding_dim,
        sparse_dim=model.sparse_dim,
        embed_rule=model.table.embed.name,
        embedx_rule=model.table.embedx.name,
        network=digest_of_network(model, given),
        slots=given.slots,
        numbers=given.numbers,
    )


def checkpoint_of(version: VersionManifest, checkpoints: Sequence[CheckpointManifest]) -> CheckpointManifest | None:
    """Return the checkpoint of the table from which the version was made, or None. It follows a base, and precedes a delta."""
    follows = version.version if version.kind == "base" else version.parent
    found = [
        each
        for each in checkpoints
        if each.pass_id == version.pass_id and each.follows_version == follows and not each.mid and each.origin is None
    ]
    return max(found, key=lambda each: each.created_at, default=None)


def choose(store: Store, wanted: StartFrom) -> tuple[VersionManifest, CheckpointManifest]:
    """Return the version to start from and its checkpoint. Raises ValueError for operators, StoreError, ManifestDamaged."""
    published = published_versions(store)
    if not published:
        raise ValueError(f"{_KEY}: {store.url} has no version; is it the store of the other model?")
    if wanted.version != "latest" and wanted.version not in published:
        newest = ", ".join(map(str, published[-_NAMED:]))
        raise ValueError(f"{_KEY}.version {wanted.version} is not in {store.url}; the newest there are {newest}")
    checkpoints = list(_checkpoints(store))
    if wanted.version != "latest":
        version = read_version(store, wanted.version)
        if (found := checkpoint_of(version, checkpoints)) is not None:
            return version, found
    refused = read_refusals(store)
    whole = []
    for each in reversed(published):
        try:
            version = read_version(store, each)
        except (NotInStore, ManifestDamaged) as gone:
            log.warning("%s: version %d is passed over: %s", _KEY, each, gone)
            continue
        if each not in refused and (found := checkpoint_of(version, checkpoints)) is not None:
            if wanted.version == "latest":
                return version, found
            whole.append(each)
    having = f"; {', '.join(map(str, whole[:_NAMED]))} have one" if whole else ""
    what = "no version" if wanted.version == "latest" else f"version {wanted.version}"
    raise ValueError(
        f"{_KEY}: {what} in {store.url} has {'a' if wanted.version == 'latest' else 'its'} checkpoint"
        f"{'' if wanted.version == 'latest' else ' no more'}{having}; a master keeps the newest master.config.keepCheckpoints"
    )


def _checkpoints(store: Store) -> list[CheckpointManifest]:
    read = (_readable(store, name.rstrip("/")) for name in store.list(layout.CHECKPOINTS))
    return [each for each in read if each is not None]


def _readable(store: Store, name: str) -> CheckpointManifest | None:
    try:
        found = read_checkpoint(store, name)
    except NotInStore:
        return None
    except ManifestDamaged as damaged:
        log.warning("%s: checkpoint %s is passed over: %s", _KEY, name, damaged)
        return None
    # A checkpoint by log has no files of its own to copy.
    return found if found.stands_on in ("", found.name) else None


def differences(
    version: VersionManifest, trained: TrainedModel | None, partitions: int, now: TrainedModel
) -> list[str]:
    """Return the settings of the table that differ, such as `embeddingDim 9 there, 17 here`."""
    pairs: list[tuple[str, Any, Any]] = [
        ("embeddingDim", version.dim, now.embedding_dim),
        ("partitions", version.partitions, partitions),
        ("sparseDim", version.sparse_dim, now.sparse_dim),
    ]
    if trained is not None:
        pairs.append(("table.embed.name", trained.embed_rule, now.embed_rule))
        pairs.append(("table.embedx.name", trained.embedx_rule, now.embedx_rule))
    return [f"{name} {_said(there)} there, {_said(here)} here" for name, there, here in pairs if there != here]


def _said(value: Any) -> str:
    return "null" if value is None else str(value)


def begin(ledger: Ledger, settings: MasterFile, own: Store, other: Store, generation: int) -> None:
    """Choose the checkpoint that a new ledger starts from. Called within the transaction that sets its id.

    Raises ValueError with a message for operators, ManifestDamaged, StoreError.
    """
    wanted, model, given = settings.model.start_from, settings.model, settings.input
    assert wanted is not None
    version, checkpoint = choose(other, wanted)
    what = f"{_KEY}: version {version.version} in {other.url}"
    now = trained_model(model, given)
    if found := differences(version, checkpoint.model, model.partitions, now):
        raise ValueError(
            f"{what} has another table: {'; '.join(found)}; set them under model as they are there, or leave startFrom out"
        )
    if (version.features is None) != (settings.features is None):
        raise ValueError(
            f"{what} has keys {'of click lines' if version.features is None else 'made by features'}, and this model has not: no "
            "key would be found again; leave startFrom out"
        )
    if checkpoint.model is None:
        _check_columns(other, checkpoint, model, what, Path(settings.master.state_dir))
    # A compacted checkpoint has no dense values of its own; they are in the network of its version.
    dense = not checkpoint.stands_on and checkpoint.model is not None and checkpoint.model.network == now.network
    started = StartedFrom(
        store=other.url,
        version=version.version,
        checkpoint=checkpoint.name,
        name=f"start-{version.version}-g{generation}",
        dense=dense,
        shift=checkpoint.shift,
        taken_over="all of it, with its optimizer's state" if dense else "",
    )
    places = _places(settings, checkpoint)
    if places is not None:
        last = last_possible(version, settings, time.time())
        ledger.set_facts(last_version=max(last, ledger.facts.last_version))
    windows = () if places is None else windows_of(other)
    ledger.set_facts(started_from=started, offset=checkpoint.offset, stream=places, windows_before=windows)
    _inherit_statistics(ledger, settings, own, _statistics_of(other, version, settings.features), started)
    added, dropped = _moved(version.slots, given.slots), _moved(given.slots, version.slots)
    log.info(
        "the model begins with version %d of %s (checkpoint %s, %d rows): slots added %s, dropped %s; the dense network %s",
        version.version, other.url, checkpoint.name, sum(checkpoint.rows.values()), added, dropped,
        "is the same" if dense else "is another",
    )  # fmt: skip


def _places(settings: MasterFile, checkpoint: CheckpointManifest) -> StreamPlaces | None:
    """Return the checkpoint's position in the same stream, so that no record is trained twice or left out; else None."""
    url, position = settings.data.source.url, checkpoint.stream
    if not settings.data.is_stream or position is None:
        return None
    if not is_same_stream(url, position.url):
        log.warning(
            "%s is not the stream that the model has learned, %s: it is read from data.start on", url, position.url
        )
        return None
    log.info("the stream goes on behind the offsets that the model has learned")
    return StreamPlaces(following=position.following, files=position.files)


def windows_of(store: Store) -> tuple[WindowQuality, ...]:
    """Return the figures of the newest windows of the other model's stream, the newest first, as a reference for the changed model.

    Raises StoreError.
    """
    refused, found = read_refusals(store), list[WindowQuality]()
    for version in reversed(published_versions(store)):
        if len(found) == MOST_COMPARED:
            break
        with suppress(NotInStore, ManifestDamaged):
            manifest = read_version(store, version)
            before = None if manifest.quality is None else manifest.quality.before
            if version in refused or manifest.compacts is not None or not manifest.offsets or before is None:
                continue
            if before.auc is not None and before.calibration is not None:
                found.append(WindowQuality(before.shows, before.clicks, before.auc, before.calibration))
    return tuple(found)


def begin_again(ledger: Ledger, settings: MasterFile, own: Store, other: Store) -> None:
    """Choose again, while nothing is trained yet. Called within a transaction. Raises as `begin`."""
    gone, facts = ledger.facts.started_from, ledger.facts
    assert gone is not None
    pinned = {"statistics": "", "statistics_of": 0}
    ledger.set_facts(started_from=None, offset=None, **pinned)
    begin(ledger, settings, own, other, facts.generation)
    # Another checkpoint of the same version would get the same name for its copy.
    own.delete(layout.checkpoint_folder(gone.name))


def _moved(before: Sequence[str], now: Sequence[str]) -> str:
    return ", ".join(each for each in now if each not in before) or "none"


def _check_columns(store: Store, checkpoint: CheckpointManifest, model: Model, what: str, scratch: Path) -> None:
    """Check the SGD rules by the number of columns of the first row, because an older manifest does not name them."""
    expected = layout_of(model)
    entry = next((each for each in checkpoint.files if "/000/" in each.path and each.records), None)
    if entry is None:
        return
    with (
        tempfile.TemporaryDirectory(dir=scratch) as folder,
        open_lines(checked_file(store, entry, Path(folder))) as lines,
    ):
        columns = len(next(lines_in_range(lines))[1].split(b"\n", 1)[0].split())
    if columns not in (expected.short, expected.full):
        raise ValueError(
            f"{what} has rows of {columns} columns, and table.embed.name {model.table.embed.name} with table.embedx.name "
            f"{model.table.embedx.name} give {expected.short} or {expected.full}; set the rules as they are there"
        )


def _statistics_of(store: Store, version: VersionManifest, now: Features | None) -> Statistics | None:
    if version.features is None:
        return None
    path = f"{layout.model_folder(version.version)}/features.json"
    try:
        document = read_features(store.get_bytes(path), version.features)
    except FeaturesDamaged as damaged:
        raise ValueError(f"{_KEY}: {path} in {store.url}: {damaged}") from damaged
    for sentence in numbers_read_otherwise(document.features, now):
        log.warning("%s: %s", _KEY, sentence)
    return document.statistics


def kept_series(old: Statistics, new: Statistics) -> Statistics:
    """Return `new` with the series of `old` where it has them, so that keys and numbers made of these keep their meaning."""
    return new.model_copy(
        update={
            "texts": {name: old.texts.get(name, each) for name, each in new.texts.items()},
            "numbers": {name: old.numbers.get(name, each) for name, each in new.numbers.items()},
        }
    )


def _inherit_statistics(
    ledger: Ledger, settings: MasterFile, own: Store, old: Statistics | None, started: StartedFrom
) -> None:
    features = settings.features
    if old is None or features is None:
        return
    ledger.set_facts(started_from=started.model_copy(update={"statistics": publish_statistics(own, old)}))
    if settings.statistics is None and features.needs_statistics and _suffice(features, old):
        # A new column that needs no statistics gets none, so its drift is not measured.
        read, _ = measured_inputs(features)
        names = {series_of(each) for each in read.texts}
        pinned = old.model_copy(
            update={
                "texts": {name: each for name, each in old.texts.items() if name in names},
                "numbers": {name: each for name, each in old.numbers.items() if name in read.numbers},
            }
        )
        ledger.set_facts(statistics=publish_statistics(own, pinned), statistics_of=0)


def _suffice(features: Features, statistics: Statistics) -> bool:
    try:
        transformer_of(features, statistics)
    except (NeedsStatistics, OtherStatistics) as lacking:
        log.info("%s: %s: the first pass is analyzed for what is new, and all else stays as it was", _KEY, lacking)
        return False
    return True


def ignored(ledger: Ledger, wanted: StartFrom | None, own_url: str) -> str:
    """Return a warning if an existing ledger began with another checkpoint than `startFrom` names, else ""."""
    started = ledger.facts.started_from
    if wanted is None:
        return ""
    if started is None:
        return f"{_KEY} is ignored: this training began without it; begin with an empty state to use it"
    if _asks_for_another(started, wanted, own_url):
        return (
            f"{_KEY} is ignored: this training began with version {started.version} of {started.store}; begin with an empty "
            "state to use another"
        )
    return ""


def _asks_for_another(started: StartedFrom, wanted: StartFrom, own_url: str) -> bool:
    other_store = (wanted.store or own_url).rstrip("/") != started.store.rstrip("/")
    return other_store or wanted.version not in ("latest", started.version)


def may_change(started: StartedFrom | None, wanted: StartFrom | None, own_url: str) -> bool:
    """True if the settings name another checkpoint and the copy of the present one is not complete."""
    return (
        started is not None
        and not started.copied
        and wanted is not None
        and _asks_for_another(started, wanted, own_url)
    )


def status_of(ledger: Ledger, ignored: str) -> StartedFromStatus | None:
    """Return the part of the status about the checkpoint that the model started from, and the reason if the setting is ignored."""
    started = ledger.facts.started_from
    if started is None:
        return StartedFromStatus(ignored=ignored) if ignored else None
    return StartedFromStatus(
        store=started.store,
        version=started.version,
        checkpoint=started.checkpoint,
        network=started.taken_over,
        ignored=ignored,
    )


class _Gone(ValueError):
    """The other model's retention has deleted the chosen checkpoint."""


class CheckpointCopy:
    """Copies the checkpoint into the model's own store. Each file is verified, and the manifest is written last."""

    def __init__(
        self,
        coordinator: Coordinator,
        own: Store,
        other: Store,
        scratch: Path,
        said: Callable[[str, str], None],
        choose_again: Callable[[], None] | None,
    ) -> None:
        """The copy calls `said` with its progress and its present error. It calls `choose_again` if the checkpoint is gone; that is None
        for a named version, which has no substitute.
        """
        self._choose_again = choose_again
        self._coordinator = coordinator
        self._own = own
        self._other = other
        self._scratch = scratch
        self._said = said

    def run(self, stop: threading.Event) -> bool:
        """Copy until it is done, with retries. Return False if `stop` was set before."""
        while not stop.is_set():
            try:
                if self._copy_or_choose(stop):
                    self._said("", "")
                    return True
            except (StoreError, ValueError) as failed:  # noqa: PERF203 (trying again is what it is for)
                self._said(self._what(), f"{self._what()} fails: {failed}; {self._way_out(failed)}")
                stop.wait(_AGAIN_SECONDS)
        return False

    def _what(self) -> str:
        started = self._started
        return f"the copy of checkpoint {started.checkpoint} of version {started.version} from {started.store}"

    def _copy_or_choose(self, stop: threading.Event) -> bool:
        """Return False if `stop` was set, or if another checkpoint was chosen. Raises StoreError, ValueError."""
        try:
            return self._copy(stop)
        except NotInStore as failed:
            started = self._started
            manifests = layout.checkpoint_manifest(started.checkpoint), layout.version_manifest(started.version)
            missing = next((each for each in manifests if not self._other.exists(each)), None)
            if missing is None:
                raise
            if self._choose_again is None:
                raise _Gone(f"{missing} is no longer there, as retention deletes it") from failed
            log.warning("%s: %s is no longer there; another one is chosen", self._what(), missing)
            self._choose_again()
            return False

    def _way_out(self, failed: Exception) -> str:
        if isinstance(failed, _Gone):
            return (
                f"set {_KEY}.version to latest or to another version and restart the master, as nothing is learned yet"
            )
        if isinstance(failed, NotInStore | ManifestDamaged):
            return "put the file back, or begin with an empty state and another model.startFrom.version"
        return "it is tried again"

    @property
    def _started(self) -> StartedFrom:
        started = self._coordinator.facts.started_from
        assert started is not None
        return started

    def _files(self, source: CheckpointManifest) -> list[tuple[FileEntry, str]]:
        """Return the files to copy, each with its path below the copy's folder."""
        started, folder = self._started, layout.checkpoint_folder(self._started.checkpoint) + "/"
        found = [(each, each.path.removeprefix(folder)) for each in source.files]
        kept = [each for each in found if each[1].startswith(("000/", "001/") if started.dense else "000/")]
        if started.dense:
            return kept
        version = read_version(self._other, started.version)
        network = {Path(each.path).name: each for each in version.model_files}
        if missing := [name for name in NETWORK if name not in network]:
            raise ManifestDamaged(f"the manifest of version {started.version} names no {missing[0]}")
        return [*kept, *((network[name], f"{NETWORK_FOLDER}/{name}") for name in NETWORK)]

    def _copy(self, stop: threading.Event) -> bool:
        """Copy all files, then write the manifest. Return False if `stop` was set. Raises StoreError, ManifestDamaged."""
        started = self._started
        source = read_checkpoint(self._other, started.checkpoint)
        version = read_version(self._other, started.version)
        files = self._files(source)
        began, done, entries = time.monotonic(), 0, []
        with tempfile.TemporaryDirectory(dir=self._scratch) as folder, ThreadPoolExecutor(max_workers=_COPIES) as pool:
            copies = pool.map(lambda each: self._copied(each[0], each[1], Path(folder), stop), files)
            for entry in copies:
                if entry is None:
                    return False
                entries.append(entry)
                done += 1
                self._said(f"{self._what()}: {done} of {len(files)} files", "")
        manifest = source.model_copy(
            update={
                "name": started.name,
                "pass_ordinal": 0,
                "follows_version": None,
                "base_version": None,
                "files": tuple(entries),
                "model": source.model or _of_version(version),
                "stands_on": "",
                "origin": Origin(
                    store=started.store, version=started.version, checkpoint=source.name, dense=started.dense
                ),
            }
        )
        self._own.put_bytes(manifest.to_json(), layout.checkpoint_manifest(started.name), overwrite=True)
        self._coordinator.found.start_copied()
        log.info("%s took %.1f s: %d files", self._what(), time.monotonic() - began, len(files))
        return True

    def _copied(self, entry: FileEntry, place: str, folder: Path, stop: threading.Event) -> FileEntry | None:
        if stop.is_set():
            return None
        file = checked_file(self._other, entry, folder)
        target = f"{layout.checkpoint_folder(self._started.name)}/{place}"
        copied = publish_once(self._own, file, target, entry.records)
        if file.is_relative_to(folder):
            file.unlink()
        return copied


def _of_version(version: VersionManifest) -> TrainedModel:
    """Return a description for a checkpoint whose older manifest has none; `_check_columns` has checked its rules."""
    return TrainedModel(
        embedding_dim=version.dim,
        sparse_dim=version.sparse_dim,
        embed_rule="",
        embedx_rule="",
        network="",
        slots=version.slots,
        numbers=version.numbers,
    )
