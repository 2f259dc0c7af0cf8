"""CycloneDX documents of what a release has: Debian's and Python's packages of an image, and the packages that a wheel needs."""

import re
import tarfile
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from email import message_from_bytes
from posixpath import basename, dirname
from typing import IO
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

_LICENCE = "Apache-2.0"
_STATUS = "var/lib/dpkg/status"
_METADATA = re.compile(r"(?:.*/)?site-packages/[^/]+\.dist-info/METADATA")
_LOCKED = re.compile(r"^([\w.-]+)==([^ \\;]+)", re.MULTILINE)


def packages_of_image(layers: Iterable[IO[bytes]]) -> list[PackageURL]:
    """Those that a container of these layers (uncompressed tars, the base's first) sees: by dpkg, and in every site-packages."""
    files = _left(layers, lambda name: name == _STATUS or bool(_METADATA.fullmatch(name)))
    found = _debian(files.pop(_STATUS, b""))
    for text in files.values():
        about = message_from_bytes(text)
        found.append(PackageURL("pypi", None, about["Name"].lower().replace("_", "-"), about["Version"]))
    return sorted(set(found), key=str)


def _left(layers: Iterable[IO[bytes]], wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """The wanted files that no later layer deletes, by path."""
    files: dict[str, bytes] = {}
    for layer in layers:
        deleted, added = [], {}
        with tarfile.open(fileobj=layer, mode="r|") as archive:
            for entry in archive:
                name = entry.name.removeprefix("./")
                if basename(name) == ".wh..wh..opq":
                    deleted.append(f"{dirname(name)}/")
                elif basename(name).startswith(".wh."):
                    deleted.append(f"{dirname(name)}/{basename(name)[4:]}")
                elif entry.isreg() and wanted(name):
                    content = archive.extractfile(entry)
                    assert content is not None
                    added[name] = content.read()
        gone = [
            each for each in files if any(each == name or each.startswith(f"{name.rstrip('/')}/") for name in deleted)
        ]
        for each in gone:
            del files[each]
        files.update(added)
    return files


def _debian(status: bytes) -> list[PackageURL]:
    about = [message_from_bytes(each) for each in status.split(b"\n\n") if each.strip()]
    return [
        PackageURL("deb", "debian", each["Package"], each["Version"], {"arch": each["Architecture"]})
        for each in about
        if each["Status"] == "install ok installed"
    ]


def packages_of_lock(text: str) -> list[PackageURL]:
    """Of a locked requirements file."""
    return sorted({PackageURL("pypi", None, name, version) for name, version in _LOCKED.findall(text)}, key=str)


def document(name: str, version: str, digest: str, packages: Iterable[PackageURL], time: int) -> str:
    """The SBOM of a file of a release, as JSON. `digest`: SHA-256 of the file, in hexadecimal digits."""
    about = Component(
        name=name,
        version=version,
        type=ComponentType.FILE,
        bom_ref=name,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
        licenses=[LicenseExpression(_LICENCE)],
    )
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, f"sha256:{digest}"))
    bom.metadata.component = about
    bom.metadata.timestamp = datetime.fromtimestamp(time, timezone.utc)
    components = [
        Component(name=each.name, version=each.version, type=ComponentType.LIBRARY, bom_ref=str(each), purl=each)
        for each in packages
    ]
    bom.components.update(components)
    bom.register_dependency(about, components)
    text: str = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=1)
    return f"{text}\n"
