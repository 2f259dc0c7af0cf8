"""A version made wrong on purpose is refused by the gate, named in the status, and the old one stays live."""

import json
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from elastic_ctr.local.endpoints import ask, predict
from elastic_ctr.seqfile.file_reader import SequenceFileReader
from elastic_ctr.seqfile.file_writer import SequenceFileWriter
from elastic_ctr.store import Store, open_store
from elastic_ctr.versions import layout
from elastic_ctr.versions.donefile import announce
from elastic_ctr.versions.manifest import FileEntry, VersionManifest, publish, read_version
from pipeline.running import Run, values_for
from pipeline.test_whole_run import COMMAND, synthetic

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


def change_one_weight(data: bytearray) -> None:
    """The last number of the file is the output layer's last weight."""
    value = np.frombuffer(bytes(data[-4:]), "<f4") + np.float32(0.01)
    data[-4:] = value.astype("<f4").tobytes()


def one_column_too_far(values: Values) -> Values:
    return np.roll(values, -1, axis=1)


@pytest.mark.timeout(240)
def test_a_version_that_answers_wrongly_is_refused_and_the_old_one_stays_live(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    slots = synthetic(tmp_path / "data", 1, 20_000)
    run = start(values_for(tmp_path / "data", slots, "20200401/00", "20200401/00", trainer={"replicas": 1}))
    live = run.finish()["live"]
    store = open_store(run.places.store_url)
    original = read_version(store, live)
    line = json.loads(store.get_bytes(layout.sample_file(live)).splitlines()[0])["line"]

    wrongs: tuple[dict[str, Any], ...] = ({}, {"weights": change_one_weight}, {"rows": one_column_too_far})
    for number, changes in enumerate(wrongs):
        version = live + 1 + number
        forge(store, original, version, tmp_path / str(version), **changes)
        settled = run.until(
            lambda version=version: run.session.live == version  # type: ignore[misc]
            or (run.session.release is not None and version in run.session.release.refused),
            60, f"version {version} is settled",
        )  # fmt: skip
        assert settled
        if not changes:
            # The forger's own work is not what is refused.
            assert run.session.live == version
            live = version
            continue
        assert run.session.release is not None
        reason = run.session.release.refused[version]
        assert str(version) in reason or "sample" in reason, reason
        assert run.session.live == live
        assert set(predict(run.places.serving, "ctr", [line])[1]) == {live}
        assert str(version) in json.dumps(ask(f"http://{run.places.transfer}/status")["refused"])
        shown = subprocess.run(
            [
                COMMAND, "status", "--address", run.places.master_status.removeprefix("http://"),
                "--transfer", run.places.transfer, "--serving", f"127.0.0.1:{run.places.values.serving.config.admin_port}",
            ],
            capture_output=True, text=True, timeout=30, check=False,
        )  # fmt: skip
        assert str(version) in shown.stdout
