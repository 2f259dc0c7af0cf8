"""Values of sample keys, read back from the files that a version publishes."""

import hashlib
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from elastic_ctr.config.model import Model
from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.store.backends import AlreadyPublished, Store, StoreError
from elastic_ctr.store.versions.manifest import FileEntry, digest_of
from elastic_ctr.store.versions.published_files import publish
from elastic_ctr.training.export.table_text import RowLayout

Keys = npt.NDArray[np.uint64]
Values = npt.NDArray[np.float32]


def layout_of(model: Model) -> RowLayout:
    """Return the columns of a saved row under a model's SGD rules."""
    return RowLayout.of(model.table.embed.name, model.table.embedx.name, model.embedding_dim - 1)


def publish_once(store: Store, source: Path, path: str, records: int) -> FileEntry:
    """Publish a file and return its entry. After a restart a file with the same bytes may be there already.

    Raises StoreError if the file there has other bytes.
    """
    try:
        return publish(store, source, path, records)
    except AlreadyPublished:
        size, sha256 = digest_of(source)
        # Streamed, not fetched, because a copy beside the source could be taken for a file to publish.
        there = hashlib.sha256()
        for block in store.read_from(path):
            there.update(block)
        if there.hexdigest() != sha256:
            raise StoreError(
                f"{path} is published already with other bytes; delete the folder if no manifest names it"
            ) from None
        return FileEntry(path=path, bytes=size, sha256=sha256, records=records)


def values_in_file(file: Path, wanted: Keys) -> list[tuple[Keys, Values]]:
    """Return blocks of (keys, values) for the `wanted` keys, sorted, that the SequenceFile has."""
    if not len(wanted):
        return []
    found = []
    with closing(SequenceFileReader(file)) as blocks:
        for keys, values in blocks:
            hit = np.isin(keys, wanted, assume_unique=True)
            if hit.any():
                found.append((keys[hit], values[hit]))
    return found


class SampleValues:
    """Collects the values of the sample's keys, from the newest version to the oldest."""

    def __init__(self, wanted: Keys, dim: int) -> None:
        self._wanted = wanted
        self._values = np.zeros((len(wanted), dim), np.float32)
        self._found = np.zeros(len(wanted), np.bool_)
        self._written = np.zeros(len(wanted), np.uint8)

    def take(self, blocks: Iterable[tuple[Keys, Values]], *, written: bool) -> None:
        for keys, values in blocks:
            at = np.searchsorted(self._wanted, keys)
            self._values[at] = values
            self._found[at] = True
            self._written[at] = written

    def missing(self, of: Keys) -> Keys:
        return of[~self._found[np.searchsorted(self._wanted, of)]]

    def packed(self) -> tuple[bytes, bytes, bytes]:
        """Return the found keys (uint64), their values (float32 [n, dim]), and uint8 1 if this save wrote them."""
        return (
            self._wanted[self._found].astype("<u8").tobytes(),
            self._values[self._found].astype("<f4").tobytes(),
            self._written[self._found].tobytes(),
        )
