"""Checks the files of a release as a user would who has only them, and a public key from elsewhere."""

import json
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from base64 import b64decode
from collections.abc import Callable, Iterator
from email import message_from_bytes
from pathlib import Path
from typing import Any

import helm_python
import yaml
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from release.build import BUNDLE, DESCRIBED, SIGNATURE, SUMS
from release.facts import IMAGES, NoRelease
from release.oci import Damaged, read_layout, scratch, sha256_of
from release.sbom import packages_of_image
from release.signing import NoSuchKey, is_of

_UNSUMMED = {SUMS, SIGNATURE, BUNDLE}
_LABEL = "org.opencontainers.image."
_LABELS = ("title", "version", "licenses", "revision")
_SUM = re.compile(r"([0-9a-f]{64})  ([^/\\]+)")


class Release:
    """The files of a folder, and their version, which is that of the wheel."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wheel = self._one("elastic_ctr-*.whl")
        self.version = self.wheel.name.split("-")[1]
        self.chart = self._one(f"elastic-ctr-{self.version}.tgz")
        self.images = sorted(each for each in folder.glob("*.oci.tar") if "-chart-" not in each.name)

    def _one(self, pattern: str) -> Path:
        found = list(self.folder.glob(pattern))
        if len(found) != 1:
            raise NoRelease(f"{self.folder} has {len(found)} files {pattern}, and a release has one: make release")
        return found[0]

    def read(self, name: str) -> bytes:
        try:
            return (self.folder / name).read_bytes()
        except FileNotFoundError as absent:
            raise NoRelease(f"{name} is absent from {self.folder}") from absent

    @property
    def provenance(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.read(f"elastic-ctr-{self.version}.intoto.json"))
        return found

    @property
    def commit(self) -> str:
        """The commit that the provenance names."""
        needed = self.provenance["predicate"]["buildDefinition"]["resolvedDependencies"]
        [commit] = [each["digest"]["gitCommit"] for each in needed if "gitCommit" in each["digest"]]
        return str(commit)

    def check_sums(self) -> str:
        """Every file has its line, and every line its file."""
        summed: dict[str, str] = {}
        for line in self.read(SUMS).decode("utf-8", "replace").splitlines():
            found = _SUM.fullmatch(line)
            if found is None or found[2] in summed:
                raise NoRelease(
                    f"{SUMS} has the line {line[:100]!r}, not a checksum and the name of another file of this folder"
                )
            summed[found[2]] = found[1]
        files = list(self.folder.iterdir())
        for each in files:
            if each.is_symlink() or not each.is_file():
                raise NoRelease(f"{each.name} is not a file, and a release has files alone")
        here = {each.name for each in files} - _UNSUMMED
        for name in sorted(here ^ summed.keys()):
            raise NoRelease(f"{name} is {'not in SHA256SUMS' if name in here else 'in SHA256SUMS, but absent'}")
        for name, digest in summed.items():
            if (other := sha256_of(self.folder / name)) != digest:
                raise NoRelease(f"{name} has the SHA-256 {other}, and SHA256SUMS has {digest}")
        return f"{len(summed)} files"

    def check_signature(self, public_key: Path | None) -> str:
        if public_key is None:
            return "NOT CHECKED"
        sums, signature = self.read(SUMS), _decoded(self.read(SIGNATURE))
        if not is_of(public_key, sums, signature):
            raise NoRelease(f"{SIGNATURE} is not a signature of {SUMS} by {public_key}")
        if b64decode(json.loads(self.read(BUNDLE))["messageSignature"]["signature"]) != signature:
            raise NoRelease(f"{BUNDLE} has another signature than {SIGNATURE}")
        return f"of {SUMS} by {public_key}"

    def check_provenance(self) -> str:
        """It names each file that is built, with its digest, and one commit."""
        named = sorted(each["name"] for each in self.provenance["subject"])
        built = sorted(each.name for each in self.folder.iterdir() if each.suffix in DESCRIBED)
        if named != built:
            raise NoRelease(f"the provenance is of {', '.join(named)}, and the release has {', '.join(built)}")
        for subject in self.provenance["subject"]:
            if (found := sha256_of(self.folder / subject["name"])) != subject["digest"]["sha256"]:
                raise NoRelease(f"{subject['name']} has the SHA-256 {found}, not that of its provenance")
        return f"{len(named)} files of commit {self.commit}"

    def check_bills(self) -> str:
        """Each file has an SBOM of its digest, and an image that of the packages in it."""
        counts, validator = [], JsonStrictValidator(SchemaVersion.V1_6)
        for subject in self.provenance["subject"]:
            name, digest = subject["name"], subject["digest"]["sha256"]
            text = self.read(f"{name}.cdx.json").decode()
            if wrong := validator.validate_str(text):
                raise NoRelease(f"{name}.cdx.json does not meet the schema of CycloneDX: {str(wrong).splitlines()[0]}")
            bill = json.loads(text)
            about = bill["metadata"]["component"]
            if [each["content"] for each in about["hashes"]] != [digest] or about["version"] != self.version:
                raise NoRelease(f"{name}.cdx.json is of another file than {name} {self.version}")
            if self.folder / name in self.images:
                with read_layout(self.folder / name).contents() as layers:
                    inside = {str(each) for each in packages_of_image(layers)}
                listed = {each["purl"] for each in bill.get("components", [])}
                if inside != listed:
                    raise NoRelease(f"{name}.cdx.json and the image differ: {', '.join(sorted(inside ^ listed))}")
            counts.append(f"{name}: {len(bill.get('components', []))} packages")
        return "; ".join(counts)

    def check_wheel(self) -> str:
        with zipfile.ZipFile(self.wheel) as archive:
            about = message_from_bytes(archive.read(f"elastic_ctr-{self.version}.dist-info/METADATA"))
        if (about["Version"], about["License-Expression"]) != (self.version, "Apache-2.0"):
            raise NoRelease(f"{self.wheel.name} is {about['Version']}, {about['License-Expression']}")
        with scratch(self.folder.parent) as work:
            venv.create(work / "venv", with_pip=True)
            pip: list[str | Path] = [work / "venv/bin/python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
            _run([*pip, "install", self.wheel])
            found = _run([work / "venv/bin/elastic-ctr", "version"]).strip()
        if found != self.version:
            raise NoRelease(f"elastic-ctr version prints {found} after pip install {self.wheel.name}")
        return f"elastic-ctr version prints {found} in a fresh environment"

    def check_source(self) -> str:
        """The source archive makes the wheel, byte for byte."""
        name = f"elastic_ctr-{self.version}"
        with scratch(self.folder.parent) as work:
            with tarfile.open(self.folder / f"{name}.tar.gz") as archive:
                time = archive.getmembers()[0].mtime
                archive.extractall(work, filter="data")
            call = f"from setuptools import build_meta; build_meta.build_wheel({str(work)!r})"
            environment = {**os.environ, "SOURCE_DATE_EPOCH": str(int(time))}
            _run([sys.executable, "-W", "ignore", "-c", call], cwd=work / name, env=environment)
            if (work / self.wheel.name).read_bytes() != self.wheel.read_bytes():
                raise NoRelease(f"{name}.tar.gz makes another wheel than {self.wheel.name}")
        return f"{name}.tar.gz makes the same wheel"

    def check_chart(self) -> str:
        """The chart's lint, its versions, and that its layout has the same package."""
        with tarfile.open(self.chart) as archive, scratch(self.folder.parent) as work:
            archive.extractall(work, filter="data")
            about = yaml.safe_load((work / "elastic-ctr/Chart.yaml").read_text())
            tag = yaml.safe_load((work / "elastic-ctr/values.yaml").read_text())["image"]["tag"]
            values = {"data": {"source": {"url": "hdfs://namenode:9820"}, "start": "20200401/00", "slots": ["0"]}}
            report = helm_python.lint(work / "elastic-ctr", values, strict=True, quiet=True, kube_version="v1.34.0")
        if report["errors"]:
            raise NoRelease(f"helm lint of {self.chart.name}: {report['errors'][0]}")
        if (about["version"], about["appVersion"]) != (self.version, self.version):
            raise NoRelease(f"{self.chart.name} is version {about['version']} of {about['appVersion']}")
        if tag:
            raise NoRelease(f"{self.chart.name} has images of tag {tag}, not those of its appVersion")
        layout = read_layout(self.folder / f"elastic-ctr-chart-{self.version}.oci.tar")
        if (layout.tag, layout.config) != (self.version, about):
            raise NoRelease(f"{layout.file.name} has another Chart.yaml than {self.chart.name}")
        if layout.manifest["layers"][0]["digest"] != f"sha256:{sha256_of(self.chart)}":
            raise NoRelease(f"{layout.file.name} has another package than {self.chart.name}")
        return f"linted; version, appVersion and tag of its images are {self.version}"

    def check_images(self) -> str:
        """Their blobs, tags and labels. A release that was made without images has none."""
        if not self.images:
            return "none in this release"
        machines = {each.name.removesuffix(".oci.tar").rpartition("-")[2] for each in self.images}
        wanted = [f"elastic-ctr-{name}-{self.version}-{each}.oci.tar" for name in IMAGES for each in machines]
        if len(machines) > 1 or sorted(wanted) != [each.name for each in self.images]:
            raise NoRelease(f"there are images {', '.join(each.name for each in self.images)} of {', '.join(IMAGES)}")
        for file, name in zip(wanted, IMAGES, strict=True):
            found = read_layout(self.folder / file)
            labels = found.config["config"]["Labels"]
            has = [found.tag, *(labels.get(f"{_LABEL}{key}", "none") for key in _LABELS)]
            if has != [self.version, f"elastic-ctr {name}", self.version, "Apache-2.0", self.commit]:
                raise NoRelease(f"{file} has tag, {', '.join(_LABELS)} {', '.join(has)}; its commit is {self.commit}")
        return f"{len(IMAGES)} of tag {self.version}"


def _decoded(text: bytes) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError as failed:
        raise NoRelease(f"{SIGNATURE} is not a signature: {failed}") from failed


def _run(command: list[str | Path], cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoRelease(f"{' '.join(map(str, command))} failed: {done.stderr.strip()}")
    return done.stdout


def _passed(name: str, check: Callable[[], str]) -> str:
    try:
        return check()
    except (NoRelease, Damaged, NoSuchKey):
        raise
    except Exception as failed:
        # Without a signature, files may be anything, and their readers raise as much.
        raise NoRelease(f"{name}: a file is not what a release has ({type(failed).__name__}: {failed})") from failed


def verify(folder: Path, public_key: Path | None) -> Iterator[str]:
    """A line for each check that passed. Raises NoRelease, Damaged or NoSuchKey for the first that did not."""
    found = Release(folder)
    checks: dict[str, Callable[[], str]] = {
        "checksums": found.check_sums,
        "signature": lambda: found.check_signature(public_key),
        "provenance": found.check_provenance,
        "images": found.check_images,
        "SBOMs": found.check_bills,
        "chart": found.check_chart,
        "source": found.check_source,
        "wheel": found.check_wheel,
    }
    for name, check in checks.items():
        yield f"{name}: {_passed(name, check)}"
    if public_key is None:
        yield "The signature was NOT CHECKED, so anyone may have made these files: PUBLIC_KEY=key.pub names the key that you trust"
