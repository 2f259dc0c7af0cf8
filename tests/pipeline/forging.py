"""Versions made by hand from one that a run published."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter
from elastic_ctr.store.backends import Store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.donefile import announce
from elastic_ctr.store.versions.manifest import FileEntry, VersionManifest
from elastic_ctr.store.versions.published_files import publish
from pipeline.running import LAYERS

Values = npt.NDArray[np.float32]


def forge(
    store: Store,
    original: VersionManifest,
    version: int,
    scratch: Path,
    *,
    weights: Callable[[bytearray], None] = lambda _: None,
    rows: Callable[[Values], Values] = lambda values: values,
) -> None:
    """A base with the original's files, changed, and with right checksums: nothing but its answers can tell."""
    scratch.mkdir()

    def model(entry: FileEntry) -> FileEntry:
        data = bytearray(store.get_bytes(entry.path))
        if entry.path.endswith(".pdiparams"):
            weights(data)
        file = scratch / Path(entry.path).name
        file.write_bytes(data)
        return publish(store, file, f"{layout.model_folder(version)}/{file.name}")

    def cube(entry: FileEntry) -> FileEntry:
        file = scratch / Path(entry.path).name
        source = store.local_path(entry.path)
        assert source is not None
        with closing(SequenceFileReader(source)) as blocks, closing(SequenceFileWriter(file)) as out:
            for keys, values in blocks:
                out.write(keys, rows(values))
        return publish(store, file, f"{layout.cube_folder(version, 'base')}/{file.name}", entry.records)

    manifest = original.model_copy(
        update={
            "version": version,
            "base": version,
            "model_files": tuple(model(entry) for entry in original.model_files),
            "cube_files": tuple(cube(entry) for entry in original.cube_files),
        }
    )
    store.put_bytes(manifest.to_json(), layout.version_manifest(version))
    announce(store)


def change_output_weights(data: bytearray) -> None:
    """The file ends with the output layer's weights. One of them alone may belong to a unit that no sample activates."""
    changed = np.frombuffer(bytes(data[-4 * LAYERS[-1] :]), "<f4") + np.float32(0.05)
    data[-4 * LAYERS[-1] :] = changed.astype("<f4").tobytes()


def one_column_too_far(values: Values) -> Values:
    return np.roll(values, -1, axis=1)
