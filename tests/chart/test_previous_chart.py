"""What Kubernetes never changes of a StatefulSet is as in the chart before this one, so that `helm upgrade` goes through."""

import subprocess
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from chart.rendering import ROOT, SMALLEST, Refused, Rendered, Renderer

FIXED = ("serviceName", "selector", "podManagementPolicy", "volumeClaimTemplates")
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "with volumes for parts": {"cube": {"persistence": {"enabled": True}}},
    "without volcano": {"training": {"scheduler": "none"}},
}


def git(*words: str) -> bytes:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True).stdout


def previous_commit() -> str:
    """The last tag with a chart in it, else the last commit before HEAD's that changed the chart; skips where there is none."""
    try:
        tags = git("tag", "--merged", "HEAD", "--sort=-creatordate").decode().split()
        for tag in tags:
            if git("rev-parse", tag) != git("rev-parse", "HEAD") and git(
                "ls-tree", tag, "charts/elastic-ctr/Chart.yaml"
            ):
                return tag
        commits = git("log", "--format=%H", "HEAD", "--", "charts/elastic-ctr").decode().split()
    except (OSError, subprocess.CalledProcessError) as failed:
        pytest.skip(f"the history cannot be read: {failed}")
    # What is not committed yet has HEAD's chart before it.
    edited = git("status", "--porcelain", "--", "charts/elastic-ctr")
    for commit in commits if edited else commits[1:]:
        if git("ls-tree", commit, "charts/elastic-ctr/Chart.yaml") and git(
            "ls-tree", commit, "charts/elastic-ctr/values.schema.json"
        ):
            return commit
    if git("rev-parse", "--is-shallow-repository").strip() == b"true":
        pytest.skip("this checkout has no history (shallow), so no chart before this one")
    pytest.skip("there is no chart before this one")


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Renderer:
    folder = tmp_path_factory.mktemp("previous")
    with tarfile.open(fileobj=BytesIO(git("archive", previous_commit(), "charts/elastic-ctr"))) as archive:
        archive.extractall(folder, filter="data")
    return Renderer(Path(folder) / "charts" / "elastic-ctr")


def fixed(rendered: Rendered) -> dict[str, dict[str, object]]:
    return {each.name: {key: each.spec.get(key) for key in FIXED} for each in rendered.all("StatefulSet")}


@pytest.mark.parametrize("values", CASES.values(), ids=CASES)
def test_a_statefulset_that_was_there_before_can_be_upgraded(
    render: Renderer, previous: Renderer, values: dict[str, Any]
) -> None:
    try:
        before = fixed(previous(below=SMALLEST, **values))
    except Refused as refused:
        pytest.skip(f"the chart before this one does not take these values: {refused}")
    after = fixed(render(**values))

    both = before.keys() & after.keys()
    assert {name: after[name] for name in both} == {name: before[name] for name in both}
    # Those of pservers carry the training's name, and may go with it.
    assert {name for name in before.keys() - after.keys() if "-pserver-" not in name} == set()
