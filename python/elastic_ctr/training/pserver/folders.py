"""The folders that the server process saves to and loads from, and their copies in the store.

In Paddle's layout, `000/part-<server>-<partition>[.gz]` is the sparse table by partition, `001/part-<server>.gz` the dense
table by server. A server writes and loads only its own contiguous partitions, but requires exactly one file for every
partition, so an empty gzip file stands in for each of the others.
"""

import gzip
import re
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from elastic_ctr.config.model import Model
from elastic_ctr.formats.keys import partitions_of
from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.store.backends import NotInStore, Store, StoreError
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import CheckpointManifest, ManifestDamaged
from elastic_ctr.store.versions.published_files import fetch, read_checkpoint
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.export.published import Keys, SampleValues, Values, layout_of, publish_once, values_in_file
from elastic_ctr.training.export.table_merge import Log, merged
from elastic_ctr.training.export.table_text import partition_to_sequence_file

_SPARSE = re.compile(r"^part-(\d+)-(\d+)(\.gz)?$")


def owned(index: int, count: int, partitions: int) -> range:
    """Return the partitions of server `index` of `count`, by Paddle's rule: contiguous, and full for the first servers."""
    each = -(-partitions // count)
    return range(min(index * each, partitions), min((index + 1) * each, partitions))


class Folders:
    """The scratch folder of one generation of one server."""

    def __init__(self, root: Path, store: Store, model: Model, index: int, count: int) -> None:
        self.root = root
        self._store = store
        self.model = model
        self.index = index
        self._count = count

    def _sparse_files(self, folder: str) -> Iterator[tuple[int, Path]]:
        """Yield (partition, file) of a save by this server. Raises ValueError if some are missing."""
        return self.sparse_files_in(self.root / folder)

    def sparse_files_in(self, folder: Path) -> Iterator[tuple[int, Path]]:
        """Yield (partition, file) of a folder. Raises ValueError if one of this server's partitions is missing."""
        found = {}
        for file in sorted((folder / "000").iterdir()):
            if match := _SPARSE.match(file.name):
                found[int(match[2])] = file
        missing = sorted(set(owned(self.index, self._count, self.model.partitions)) - set(found))
        if missing:
            raise ValueError(f"{folder.name} has no file for partitions {missing[:5]}: the save did not finish")
        yield from sorted(found.items())

    def count(self, folder: str) -> control.JobResult:
        """Return the number of rows by partition of a saved folder."""
        return control.JobResult(rows={partition: _rows(file) for partition, file in self._sparse_files(folder)})

    def upload_checkpoint(self, folder: str, name: str) -> control.JobResult:
        """Upload the files as Paddle wrote them. Return their entries and the rows of each partition."""
        result = control.JobResult()
        target = layout.checkpoint_folder(name)
        for partition, file in self._sparse_files(folder):
            rows = _rows(file)
            result.rows[partition] = rows
            entry = publish_once(self._store, file, f"{target}/000/{file.name}", rows)
            result.files.append(control.File(**dict(entry)))
        for file in sorted((self.root / folder / "001").iterdir()):
            entry = publish_once(self._store, file, f"{target}/001/{file.name}", 0)
            result.files.append(control.File(**dict(entry)))
        # Every file is in the store now, and the scratch folder must not grow.
        shutil.rmtree(self.root / folder, ignore_errors=True)
        return result

    def fetch_checkpoint(self, name: str) -> int:
        """Fill `load/` with this server's partitions, the whole dense part if there is one, and a placeholder for every other partition.
        Return the number of rows of this server's partitions.

        Raises NotInStore, StoreError, ManifestDamaged, RowsDamaged.
        """
        return self._fetch(name, self.root / "load", self.root / "log", placeholders=True)

    def fetch_own(self, name: str, target: Path) -> None:
        """Fetch this server's partitions, merged with the log, and the dense part of a checkpoint. Raises as `fetch_checkpoint`."""
        self._fetch(name, target, target / "log", placeholders=False)

    def _fetch(self, name: str, target: Path, work: Path, *, placeholders: bool) -> int:
        manifest = read_checkpoint(self._store, name)
        mine = set(owned(self.index, self._count, self.model.partitions))
        shutil.rmtree(target, ignore_errors=True)
        home, rows = layout.checkpoint_folder(manifest.stands_on or name) + "/", 0
        log = self._log_of(manifest, work)
        for entry in manifest.files:
            if not entry.path.startswith(home):
                continue  # a file of the log
            kind, _, file = entry.path.removeprefix(home).partition("/")
            if kind not in ("000", "001"):
                continue  # another model's network, which a trainer takes over
            place = target / kind / file
            match = _SPARSE.match(file) if kind == "000" else None
            if match is None or int(match[2]) in mine:
                fetch(self._store, entry, place)
                if match is not None:
                    rows += self._merge(place, int(match[2]), entry.records, log)
            elif placeholders:
                place.parent.mkdir(parents=True, exist_ok=True)
                gzip.open(place, "wb").close()
        return rows

    def _log_of(self, manifest: CheckpointManifest, work: Path) -> Log:
        """Return the deltas of a checkpoint by log for this server's partitions. Raises NotInStore, StoreError, ManifestDamaged."""
        by_path = {entry.path: entry for entry in manifest.files}
        dim = self.model.embedding_dim
        found: dict[str, list[tuple[Keys, Values]]] = {"values": [], "counts": []}
        for version in manifest.log:
            names = {"values": layout.cube_file(version, "delta", 0, 1), "counts": layout.counts_file(version)}
            for what, path in names.items():
                if (entry := by_path.get(path)) is None:
                    raise ManifestDamaged(f"the manifest of checkpoint {manifest.name} names no file {path}")
                file = fetch(self._store, entry, work / what)
                with closing(SequenceFileReader(file, name=path, expected_records=entry.records)) as blocks:
                    found[what] += (self._mine(*block) for block in blocks)
        shutil.rmtree(work, ignore_errors=True)
        return Log.of(found["values"], found["counts"], dim)

    def _mine(self, keys: Keys, values: Values) -> tuple[Keys, Values]:
        """Return the keys and values of this server's partitions."""
        mine = owned(self.index, self._count, self.model.partitions)
        places = partitions_of(keys, self.model.partitions)
        own = (places >= mine.start) & (places < mine.stop)
        return keys[own], values[own]

    def _merge(self, file: Path, partition: int, rows: int, log: Log) -> int:
        """Merge the log's rows of a partition into a fetched file. Return its number of rows. The file becomes plain text, because
        compression takes longer than all else.
        """
        part = log.part(partitions_of(log.keys, self.model.partitions) == partition)
        if not len(part.keys):
            return rows
        rules = self.model.table.embed.name, self.model.table.embedx.name
        text, rows = merged(gzip.decompress(file.read_bytes()), layout_of(self.model), rules, part)
        file.unlink()
        file.with_suffix("").write_bytes(text)
        return rows

    def export(self, job: control.Job) -> control.JobResult:
        """Upload the partitions as SequenceFiles. The result has the values of the sample's keys as written."""
        result = control.JobResult()
        wanted = np.frombuffer(job.sample_keys, "<u8")
        sample = SampleValues(wanted, self.model.embedding_dim)
        work = self.root / f"export-{job.version}"
        work.mkdir(parents=True, exist_ok=True)
        for partition, source in self._sparse_files(job.folder):
            path = layout.cube_file(job.version, job.version_kind, partition, self.model.partitions)
            file = work / Path(path).name
            seed = f"{job.version}-{partition}"
            records = partition_to_sequence_file(source, file, layout_of(self.model), seed)
            entry = publish_once(self._store, file, path, records)
            result.files.append(control.File(**dict(entry)))
            mine = wanted[partitions_of(wanted, self.model.partitions) == partition]
            sample.take(values_in_file(file, mine), written=True)
            for number, older in enumerate(reversed(job.chain)):
                missing = sample.missing(mine)
                if not len(missing):
                    break
                kind = "base" if number == len(job.chain) - 1 else "delta"
                old = layout.cube_file(older, kind, partition, self.model.partitions)
                try:
                    place = self._store.local_path(old)
                    if place is None:
                        place = work / "older.seq"
                        self._store.get(old, place)
                    sample.take(values_in_file(place, missing), written=False)
                except (NotInStore, FileNotFoundError) as gone:
                    raise StoreError(
                        f"version {job.version} stands on {older}, and {old} is not in {self._store.url}; bring it back: "
                        "what is served for keys that were not written now is not known without it"
                    ) from gone
            file.unlink()
        result.keys, result.values, result.written = sample.packed()
        shutil.rmtree(work, ignore_errors=True)
        shutil.rmtree(self.root / job.folder, ignore_errors=True)
        return result


def _rows(file: Path) -> int:
    rows = 0
    with gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb") as lines:
        while block := lines.read(4 << 20):
            rows += block.count(b"\n")
    return rows
