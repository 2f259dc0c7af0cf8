"""What a release is called: one version in every file that has one, its notes, and its commit."""

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import yaml

IMAGES = ("cube", "trainer", "serving")


class NoRelease(Exception):
    """Why a release cannot be made, or a sentence on what is wrong with one."""


def versions(root: Path) -> dict[str, str]:
    """The version that each file of the repository has, by the file and its key."""
    chart = yaml.safe_load((root / "charts/elastic-ctr/Chart.yaml").read_text())
    citation = yaml.safe_load((root / "CITATION.cff").read_text())
    package = (root / "python/elastic_ctr/__init__.py").read_text()
    [program] = re.findall(r'^__version__ = "(.+)"$', package, re.MULTILINE)
    return {
        "python/elastic_ctr/__init__.py": program,
        "charts/elastic-ctr/Chart.yaml version": str(chart["version"]),
        "charts/elastic-ctr/Chart.yaml appVersion": str(chart["appVersion"]),
        "CITATION.cff": str(citation["version"]),
    }


def refuse_another(root: Path, version: str) -> None:
    """Raises NoRelease for files that have another version."""
    others = [f"{place} has {found}" for place, found in versions(root).items() if found != version]
    if others:
        raise NoRelease(f"VERSION={version} is not that of this source: {'; '.join(others)}; change these, and commit")


def notes(changelog: str, version: str) -> str:
    """The section of this version, or else the one of what is not released yet. Raises NoRelease where there is neither."""
    sections = re.findall(r"^## (\S+).*?\n(.*?)(?=^## |\Z)", changelog, re.MULTILINE | re.DOTALL)
    found = dict(reversed(sections))
    text = found.get(version) or found.get("Unreleased")
    if text is None:
        raise NoRelease(f"CHANGELOG.md has no section {version} and none of what is unreleased: add one")
    return f"# elastic-ctr {version}\n\n{text.strip()}\n"


@dataclass(frozen=True)
class Commit:
    """What a release is made of. `time`: seconds since 1970."""

    digest: str
    time: int


def commit_of(root: Path) -> Commit:
    """HEAD. Raises NoRelease where files differ from it."""
    if edited := _git(root, "status", "--porcelain"):
        first = edited.splitlines()[0]
        raise NoRelease(
            f"a release is made of a commit, and the work tree differs from HEAD ({first}): commit or stash"
        )
    digest, time = _git(root, "log", "-1", "--format=%H %ct").split()
    return Commit(digest, int(time))


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(root), *words], check=True, capture_output=True, text=True).stdout.strip()
