"""OCI image layouts, as one tar each: of an image that docker has built, and of a packed chart."""

import hashlib
import json
import shutil
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any

import yaml

from release.archives import compressed, decompressed, redate, write_tar

_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_IMAGE = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_CHART = "application/vnd.cncf.helm.config.v1+json"
_CHART_CONTENT = "application/vnd.cncf.helm.chart.content.v1.tar+gzip"
# What OCI defines of an image's settings; docker adds the id of the container that built it, and its own version.
_SETTINGS = ("User", "ExposedPorts", "Env", "Entrypoint", "Cmd", "Volumes", "WorkingDir", "Labels", "StopSignal")
# The first day that a zip archive knows. A layer of packages is dated so, and is the same in each release with the same packages.
UNDATED = 315532800


def dated(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def sha256_of(file: Path) -> str:
    with file.open("rb") as stream:
        return _digest(stream)


def _digest(stream: IO[bytes]) -> str:
    found = hashlib.sha256()
    while part := stream.read(1 << 20):
        found.update(part)
    return found.hexdigest()


class Blobs:
    """The content of a layout, by its digest."""

    def __init__(self) -> None:
        self.files: dict[str, bytes | Path] = {}

    def add(self, kind: str, content: bytes | Path) -> dict[str, object]:
        """The descriptor of a blob of this media type."""
        if isinstance(content, bytes):
            digest, size = hashlib.sha256(content).hexdigest(), len(content)
        else:
            digest, size = sha256_of(content), content.stat().st_size
        self.files[f"blobs/sha256/{digest}"] = content
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": size}

    def write(self, target: Path, manifest: dict[str, object], tag: str, time: int) -> None:
        found = {
            **self.add(_MANIFEST, _json({"schemaVersion": 2, "mediaType": _MANIFEST, **manifest})),
            "annotations": {"org.opencontainers.image.ref.name": tag},
        }
        index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": [found]}
        head = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index)}
        with target.open("wb") as stream:
            write_tar({**head, **self.files}, stream, time)


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()


class ImageWriter:
    """Writes images as layouts. A layer that images share is compressed once. `base`: digests of the base's layers, which stay as they are."""

    def __init__(self, folder: Path, base: list[str], time: int) -> None:
        self._folder = folder
        self._base = base
        self._time = time
        self._layers: dict[str, tuple[Path, str]] = {}

    def write(self, saved: Path, target: Path, tag: str) -> None:
        """From an archive by `docker save`. Files are dated UNDATED, except those of the time of the commit: machine code is valid for
        sources of that time alone.
        """
        blobs = Blobs()
        with tarfile.open(saved) as archive:
            [about] = json.loads(_read(archive, "manifest.json"))
            given = json.loads(_read(archive, about["Config"]))
            layers = [
                self._layer(archive, name, digest)
                for name, digest in zip(about["Layers"], given["rootfs"]["diff_ids"], strict=True)
            ]
        config = {
            "architecture": given["architecture"],
            "os": given["os"],
            "created": dated(self._time),
            "config": {key: given["config"][key] for key in _SETTINGS if given["config"].get(key)},
            "rootfs": {"type": "layers", "diff_ids": [digest for _, digest in layers]},
            "history": [{**each, "created": dated(self._time)} for each in given["history"]],
        }
        manifest: dict[str, object] = {
            "config": blobs.add(_IMAGE, _json(config)),
            "layers": [blobs.add(_LAYER, file) for file, _ in layers],
            "annotations": {
                key: text for key, text in (given["config"].get("Labels") or {}).items() if key.startswith("org.")
            },
        }
        blobs.write(target, manifest, tag, self._time)

    def _layer(self, archive: tarfile.TarFile, name: str, given: str) -> tuple[Path, str]:
        """The compressed file and the digest of its content."""
        if given not in self._layers:
            plain, file = self._folder / f"{given[7:]}.tar", self._folder / f"{given[7:]}.tar.gz"
            with _plain(archive, name) as source, plain.open("wb") as target:
                if given in self._base:
                    shutil.copyfileobj(source, target, 1 << 20)
                else:
                    redate(source, target, lambda time: time if time == self._time else UNDATED)
            with plain.open("rb") as source, compressed(file) as stream:
                shutil.copyfileobj(source, stream, 1 << 20)
            self._layers[given] = file, f"sha256:{sha256_of(plain)}"
            plain.unlink()
        return self._layers[given]


def write_chart(package: Path, target: Path, time: int) -> None:
    """The layout that `helm push` makes of a packed chart."""
    blobs = Blobs()
    with tarfile.open(package) as archive:
        about = yaml.safe_load(_read(archive, "elastic-ctr/Chart.yaml"))
    named = {"title": about["name"], "version": about["version"], "description": about["description"]}
    manifest: dict[str, object] = {
        "config": blobs.add(_CHART, _json(about)),
        "layers": [blobs.add(_CHART_CONTENT, package)],
        "annotations": {
            **{f"org.opencontainers.image.{key}": str(text).strip() for key, text in named.items()},
            "org.opencontainers.image.created": dated(time),
        },
    }
    blobs.write(target, manifest, about["version"], time)


class Damaged(Exception):
    """A layout whose content is not what its digests name."""


@dataclass(frozen=True)
class Layout:
    """A layout that was read: the one manifest, its config, and the names of its layers in the archive."""

    file: Path
    tag: str
    manifest: dict[str, Any]
    config: dict[str, Any]

    @property
    def layers(self) -> list[str]:
        return [_blob(each) for each in self.manifest["layers"]]

    @contextmanager
    def contents(self) -> Iterator[list[IO[bytes]]]:
        """The layers as uncompressed tars, the base's first."""
        with tarfile.open(self.file) as archive:
            yield [decompressed(_open(archive, each)) for each in self.layers]


def read_layout(file: Path) -> Layout:
    """Raises Damaged for a blob that is absent or has another digest, also of a layer's content."""
    with tarfile.open(file) as archive:
        [entry] = json.loads(_read(archive, "index.json"))["manifests"]
        manifest = json.loads(_checked(archive, entry, file).read())
        config = json.loads(_checked(archive, manifest["config"], file).read())
        contents = config.get("rootfs", {}).get("diff_ids", [None] * len(manifest["layers"]))
        for each, content in zip(manifest["layers"], contents, strict=True):
            stream = _checked(archive, each, file)
            if content is not None and (found := _digest(decompressed(stream))) != content[7:]:
                raise Damaged(f"{file.name}: the content of layer {each['digest']} is sha256:{found}, not {content}")
    return Layout(file, entry["annotations"]["org.opencontainers.image.ref.name"], manifest, config)


def _checked(archive: tarfile.TarFile, descriptor: dict[str, Any], file: Path) -> IO[bytes]:
    try:
        stream = _open(archive, _blob(descriptor))
    except KeyError as absent:
        raise Damaged(f"{file.name} has no {descriptor['digest']}") from absent
    if (found := _digest(stream)) != descriptor["digest"][7:]:
        raise Damaged(f"{file.name}: {descriptor['digest']} is sha256:{found}")
    stream.seek(0)
    return stream


def _blob(descriptor: dict[str, Any]) -> str:
    return f"blobs/sha256/{descriptor['digest'].removeprefix('sha256:')}"


def _open(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    assert found is not None, f"{name} is no file"
    return found


def _plain(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    """A layer's content; docker with containerd's store saves compressed layers."""
    found = _open(archive, name)
    packed = found.read(2) == b"\x1f\x8b"
    found.seek(0)
    return decompressed(found) if packed else found


def _read(archive: tarfile.TarFile, name: str) -> bytes:
    with _open(archive, name) as stream:
        return stream.read()


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A folder beside the release, because layers are larger than many a /tmp."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as made:
        yield Path(made)
