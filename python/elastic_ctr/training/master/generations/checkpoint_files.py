"""Functions of a save: names of checkpoints and versions, the jobs of pservers, and the checks of the written files."""

import json
import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.store.backends import Store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import FileEntry, VersionManifest
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.ledger.rows import PassRow, SaveRow, TablePart, Tables
from elastic_ctr.training.model.evaluation import weighted_auc

Keys = npt.NDArray[np.uint64]
Values = npt.NDArray[np.float32]

# Relative tolerance of a saved value with 6 significant digits: half a unit of the sixth, and room for the rounding to float32.
PRINTED_DIGITS = 5.1e-6


class PublishRefused(Exception):
    """A check of the version has failed, so it is not committed."""


def folder_of(save: SaveRow, step: str) -> str:
    """Return the folder of a step in each pserver's working directory. It has pass and generation, so that saves never share one.

    The batch save only ages rows. Its files are never read, so the following checkpoint may overwrite them.
    """
    return f"save/{save.ordinal}-{save.generation}-{'checkpoint' if step == 'batch' else step}"


def checkpoint_name(one: PassRow, generation: int) -> str:
    """Return the name of a checkpoint. It has the generation, so that no save writes into a partial upload of a lost generation."""
    return f"{one.id.replace('/', '-')}-g{generation}"


def compacted_name(log_of: str) -> str:
    """Return the name `<pass>-compacted-g<generation>` of the checkpoint that a checkpoint by log is compacted to."""
    one, generation = log_of.rsplit("-g", 1)
    return f"{one}-compacted-g{generation}"


def first_generation(checkpoints: Iterable[str]) -> int:
    """Return a generation above those of all checkpoints: a master whose ledger was lost must not write into them."""
    used = (re.search(r"-g(\d+)$", name.rstrip("/")) for name in checkpoints)
    return max((int(each[1]) for each in used if each), default=0) + 1


def last_begun(folders: Iterable[str]) -> int:
    """Return the newest version with a folder, complete or not; 0 without any. A stream's ids run ahead of the clock, so a master with a
    new ledger might reuse one.
    """
    begun = (re.match(r"\d+", name) for name in folders)
    return max((int(each[0]) for each in begun if each), default=0)


def names_given(stores: Collection[Store]) -> tuple[int, int]:
    """Return the first generation and the last version that a new ledger finds free. Beside its own store there may be the one that it
    starts from, an archive that it goes on with. Raises StoreError.
    """
    generation = first_generation(name for each in stores for name in each.list(layout.CHECKPOINTS))
    folders = (layout.MODELS, layout.CUBE)
    return generation, last_begun(name for each in stores for folder in folders for name in each.list(folder))


def last_possible(version: VersionManifest, settings: MasterFile, now: float) -> int:
    """Return the highest id that a stream may have given after `version`, two in each window: a delta's and a base's. Pods may still answer
    from a version of a lost store, and would take an id that is given again for that.
    """
    # A compacted base got its id before it was made.
    seconds = max(0.0, now - version.created_at) + settings.master.save_timeout_seconds
    return version.version + math.ceil(2 * seconds * 1000 / settings.data.stream.window_ms)


def jobs_of(save: SaveRow, sample_keys: bytes, chain: Sequence[int]) -> list[control.Job]:
    """Return the jobs of every pserver for a save."""
    jobs = []
    for step in save.steps:
        job = control.Job(id=f"{save.ordinal}-{save.generation}-{step}", folder=folder_of(save, step))
        if step == "checkpoint":
            job.kind = control.CHECKPOINT
            job.checkpoint = save.checkpoint or ""
            jobs.append(job)
        elif step in ("base", "delta"):
            job.id += f"-{save.version}"
            job.kind = control.EXPORT
            job.version = save.version or 0
            job.version_kind = step
            job.sample_keys = sample_keys
            job.chain.extend([] if step == "base" else chain)
            jobs.append(job)
    return jobs


@dataclass(frozen=True)
class PublishedSample:
    """The sample's keys, uint64 [n], and their values in a version's files, float32 [n, dim]; `left_out`: keys that the save left out."""

    keys: Keys
    values: Values
    left_out: int


def compare(pulled_keys: Keys, pulled: Values, results: Iterable[control.JobResult], dim: int) -> PublishedSample:
    """Return the published values of the sample's keys, zeros if no version has the key.

    A value may differ from the pulled one by more than its printed digits only if this save left out the row or its embedx, which
    is counted. Raises PublishRefused naming the first key that differs otherwise.
    """
    values = np.zeros_like(pulled)
    written = np.zeros(len(pulled_keys), np.bool_)
    for result in results:
        keys = np.frombuffer(result.keys, "<u8")
        at = np.searchsorted(pulled_keys, keys)
        values[at] = np.frombuffer(result.values, "<f4").reshape(-1, dim)
        written[at] = np.frombuffer(result.written, np.uint8) != 0
    close = np.abs(values - pulled) <= PRINTED_DIGITS * np.maximum(np.abs(pulled), 1e-30)
    without_embedx = written & close[:, 0] & ~close[:, 1:].all(axis=1) & (values[:, 1:] == 0).all(axis=1)
    wrong = written & ~close.all(axis=1) & ~without_embedx
    if wrong.any():
        row = int(np.argmax(wrong))
        column = int(np.argmin(close[row]))
        raise PublishRefused(
            f"key {pulled_keys[row]} was trained to {pulled[row, column]:.9g} in column {column} and written as "
            f"{values[row, column]:.9g}; {int(wrong.sum())} of {len(pulled_keys)} sample keys differ: the export is at fault"
        )
    return PublishedSample(pulled_keys, values, int((~written).sum() + without_embedx.sum()))


def judge(
    live: Values, published: Values, samples: Sequence[tuple[str, int, int]], limit: float
) -> tuple[float | None, float | None]:
    """Return the sample's AUC by the trained and by the written values. Raises PublishRefused if the loss exceeds `limit`."""
    shows = [sample[1] for sample in samples]
    clicks = [sample[2] for sample in samples]
    auc_live = weighted_auc(live, clicks, shows)
    auc_published = weighted_auc(published, clicks, shows)
    if auc_live is not None and auc_published is not None and auc_live - auc_published > limit:
        raise PublishRefused(
            f"the files score AUC {auc_published:.6f} where the trained model scores {auc_live:.6f}, more than "
            f"maxPublishLoss {limit:g} lower; lower model.table's thresholds or raise master.config.maxPublishLoss"
        )
    return auc_live, auc_published


def entries(files: Iterable[control.File]) -> tuple[FileEntry, ...]:
    found = [FileEntry(path=f.path, bytes=f.bytes, sha256=f.sha256, records=f.records) for f in files]
    return tuple(sorted(found, key=lambda entry: entry.path))


def describe_refusals(refusals: dict[str, tuple[int, list[str]]]) -> str:
    """Return a summary such as `no_colon 12 (first: "1 0 17"), empty 3`."""
    parts = []
    for reason, (lines, examples) in sorted(refusals.items(), key=lambda item: -item[1][0]):
        first = f" (first: {json.dumps(examples[0], ensure_ascii=False)})" if examples else ""
        parts.append(f"{reason} {lines}{first}")
    return ", ".join(parts)


def rows_differ(expected: dict[int, int], found: dict[int, int]) -> str:
    """Return "" if equal, else the first difference in words."""
    for partition in sorted(set(expected) | set(found)):
        if expected.get(partition, 0) != found.get(partition, 0):
            return f"partition {partition} holds {found.get(partition, 0)} rows of {expected.get(partition, 0)}"
    return ""


def merged_rows(results: Iterable[control.JobResult]) -> dict[int, int]:
    return {int(partition): int(rows) for result in results for partition, rows in result.rows.items()}


def parts_after(
    steps: Collection[str],
    before: Sequence[int],
    counted: Sequence[int],
    results: Sequence[Sequence[control.JobResult]],
) -> Tables:
    """Return the parts from counts by pserver, () without counts. Only training creates rows, and only shrinks delete them.

    Args:
        steps: the steps of the save; a shrink is the first, and the checkpoint is then the last.
        before: rows after the previous save or a load; empty if not counted.
        counted: rows before the first step; empty if not counted.
        results: results of the save's jobs, by pserver.
    """
    saved = [_saved(each) for each in results] if "checkpoint" in steps else []
    # Without a shrink the checkpoint has as many rows as the table before the save.
    trained = list(counted) if counted or "shrink" in steps else [rows for rows, _ in saved]
    found = []
    for index in range(len(saved or trained)):
        rows, size = saved[index] if saved else (trained[index], None)
        most = trained[index] if index < len(trained) else None
        known = before[index] if index < len(before) else None
        found.append(
            TablePart(
                rows=rows,
                new=None if most is None or known is None else most - known,
                expired=None if most is None else most - rows,
                bytes=size,
            )
        )
    return tuple(found)


def _saved(results: Sequence[control.JobResult]) -> tuple[int, int]:
    """Return the rows and the bytes of one pserver's partitions in a checkpoint."""
    files = [file for result in results if result.rows for file in result.files if "/000/" in file.path]
    return sum(merged_rows(results).values()), sum(file.bytes for file in files)
