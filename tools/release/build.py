"""Makes the files of a release of a commit. Two runs make the same bytes."""

import json
import os
import shutil
import subprocess
import sys
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import helm_python

from release.archives import repack
from release.facts import IMAGES, Commit, notes, refuse_another
from release.oci import ImageWriter, read_layout, scratch, sha256_of, write_chart
from release.sbom import document, packages_of_image, packages_of_lock
from release.signing import bundle, sign

# The endings of files with an SBOM and a place in the provenance.
DESCRIBED = (".whl", ".gz", ".tgz", ".tar")
SUMS, SIGNATURE, BUNDLE = "SHA256SUMS", "SHA256SUMS.sig", "SHA256SUMS.sigstore.json"
_BUILD_TYPE = "urn:elastic-ctr:make-release:1"


@dataclass(frozen=True)
class BuiltImages:
    """Images in a docker. `base`: the image that they stand on, by its name; `machine`: their architecture, as OCI names it."""

    docker: str
    prefix: str
    base: str

    def _inspect(self, image: str, form: str) -> str:
        command = [self.docker, "image", "inspect", "--format", form, image]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    @property
    def machine(self) -> str:
        return self._inspect(self.base, "{{.Architecture}}")

    @property
    def base_layers(self) -> list[str]:
        found: list[str] = json.loads(self._inspect(self.base, "{{json .RootFS.Layers}}"))
        return found

    @property
    def base_digest(self) -> str:
        """In its registry; of an image that was built here, that of its settings."""
        digests: list[str] = json.loads(self._inspect(self.base, "{{json .RepoDigests}}")) or []
        return digests[0].partition("@")[2] if digests else self._inspect(self.base, "{{.Id}}")

    def save(self, name: str, version: str, target: Path) -> None:
        command = [self.docker, "save", "--output", str(target), f"{self.prefix}/{name}:{version}"]
        subprocess.run(command, check=True)


def extract(root: Path, folder: Path, commit: Commit) -> None:
    """The commit's files, with the modes that every clone has."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    archive = ["git", "-C", str(root), "-c", "tar.umask=0022", "archive", commit.digest]
    with subprocess.Popen(archive, stdout=subprocess.PIPE) as given:
        subprocess.run(["tar", "-xp", "-C", str(folder)], stdin=given.stdout, check=True)
    if given.returncode:
        raise subprocess.CalledProcessError(given.returncode, archive)


def package(source: Path, folder: Path, version: str, time: int) -> None:
    """The wheel, the source archive and the chart, packed and as a layout."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(time)}
    with scratch(folder.parent) as work:
        for kind in ("wheel", "sdist"):
            call = f"from setuptools import build_meta; build_meta.build_{kind}({str(work)!r})"
            command = [sys.executable, "-W", "ignore", "-c", call]
            subprocess.run(command, cwd=source, env=environment, check=True, stdout=subprocess.DEVNULL)
        [wheel] = work.glob("*.whl")
        shutil.move(wheel, folder / wheel.name)
        repack(work / f"elastic_ctr-{version}.tar.gz", folder / f"elastic_ctr-{version}.tar.gz", time)
        packed = Path(helm_python.package(source / "charts/elastic-ctr", destination=work))
        repack(packed, folder / packed.name, time)
    write_chart(folder / packed.name, folder / f"elastic-ctr-chart-{version}.oci.tar", time)


def write_images(images: BuiltImages, folder: Path, version: str, time: int) -> None:
    """Each image as the tar of a layout."""
    with scratch(folder.parent) as work:
        writer = ImageWriter(work, images.base_layers, time)
        for name in IMAGES:
            saved = work / "saved.tar"
            images.save(name, version, saved)
            writer.write(saved, folder / f"elastic-ctr-{name}-{version}-{images.machine}.oci.tar", version)
            saved.unlink()


def describe(source: Path, folder: Path, version: str, commit: Commit, base: Mapping[str, str]) -> None:
    """The SBOM of each file, the notes and the provenance. `base`: digests of images that others have built, by name."""
    needed = packages_of_lock((source / "requirements/run.txt").read_text())
    made = sorted(each for each in folder.iterdir() if each.suffix in DESCRIBED)
    for file in made:
        found = needed if file.suffix in (".whl", ".gz") else []
        if file.name.endswith(".oci.tar") and "-chart-" not in file.name:
            with read_layout(file).contents() as layers:
                found = packages_of_image(layers)
        text = document(file.name, version, sha256_of(file), found, commit.time)
        (folder / f"{file.name}.cdx.json").write_text(text)
    changelog = (source / "CHANGELOG.md").read_text()
    (folder / "RELEASE_NOTES.md").write_text(notes(changelog, version))
    locks = {f"requirements/{each}.txt": sha256_of(source / f"requirements/{each}.txt") for each in ("run", "cube")}
    statement = {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": each.name, "digest": {"sha256": sha256_of(each)}} for each in made],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": {"version": version},
                "resolvedDependencies": [
                    {"name": "elastic-ctr", "digest": {"gitCommit": commit.digest}},
                    *({"name": name, "digest": {"sha256": digest}} for name, digest in locks.items()),
                    *({"name": name, "digest": {"sha256": digest[7:]}} for name, digest in base.items()),
                ],
            },
            "runDetails": {"builder": {"id": "urn:elastic-ctr:make"}},
        },
    }
    (folder / f"elastic-ctr-{version}.intoto.json").write_text(json.dumps(statement, indent=1) + "\n")


def seal(folder: Path, key: Path | None) -> None:
    """Write the checksums of all files, and sign them."""
    sums = "".join(f"{sha256_of(each)}  {each.name}\n" for each in sorted(folder.iterdir())).encode()
    (folder / SUMS).write_bytes(sums)
    if key:
        signature = sign(key, sums)
        (folder / SIGNATURE).write_bytes(b64encode(signature))
        (folder / BUNDLE).write_bytes(bundle(key, sums, signature))


def release(
    source: Path, folder: Path, version: str, commit: Commit, images: BuiltImages | None, key: Path | None
) -> None:
    """Fill the folder from the commit's files. Without `images`, it has the wheel, the source archive and the chart."""
    refuse_another(source, version)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    package(source, folder, version, commit.time)
    if images:
        write_images(images, folder, version, commit.time)
    describe(source, folder, version, commit, {images.base: images.base_digest} if images else {})
    seal(folder, key)
