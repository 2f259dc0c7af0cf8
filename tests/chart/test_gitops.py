"""Releases that Argo CD and Flux install: their manifests, and the charts that they render."""

import json
import re
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from chart.rendering import CHART, EXAMPLES, ROOT, TOKENS, Renderer, merged, on_top_of_smallest, read

GITOPS = sorted((CHART / "examples" / "gitops").glob("*.yaml"))
FILES = [*GITOPS, *EXAMPLES]
ABOUT = yaml.safe_load((CHART / "Chart.yaml").read_text())


def manifests(file: Path) -> dict[str, dict[str, Any]]:
    """By kind."""
    return {each["kind"]: each for each in yaml.safe_load_all(file.read_text())}


def values_of(file: Path) -> Any:
    found = manifests(file)
    if application := found.get("Application"):
        return application["spec"]["source"]["helm"]["valuesObject"]
    return found["HelmRelease"]["spec"]["values"]


def release_values(file: Path) -> Any:
    """The values of a release whose Secret is named."""
    return values_of(file) if file in GITOPS else merged(TOKENS, on_top_of_smallest(read(file)))


def render(file: Path, times: int) -> set[str]:
    """The texts of so many renderings without a cluster."""
    with helm_python.Chart.load(CHART) as chart:
        found = [chart.render(release_values(file), name="ctr", namespace="ads") for _ in range(times)]
    return {json.dumps(each, sort_keys=True) for each in found}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_two_renderings_are_the_same_bytes(file: Path) -> None:
    assert len(render(file, 2)) == 1


# test_gitops.py has two renderings in every run; a hundred of each file take four minutes of a core.
@pytest.mark.nightly
@pytest.mark.timeout(300)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_hundred_renderings_are_the_same_bytes(file: Path) -> None:
    assert len(render(file, 100)) == 1


def test_the_application_installs_this_chart_and_its_values_name_the_tokens() -> None:
    spec = manifests(CHART / "examples" / "gitops" / "argo-cd.yaml")["Application"]["spec"]

    assert (spec["source"]["chart"], spec["source"]["targetRevision"]) == (ABOUT["name"], ABOUT["version"])
    assert not spec["source"]["repoURL"].startswith("oci://")
    assert spec["destination"].keys() == {"server", "namespace"}
    # Without it the Job of a former training stays beside the new one.
    assert spec["syncPolicy"]["automated"]["prune"] is True


def test_the_helmrelease_reads_this_chart_from_its_repository() -> None:
    found = manifests(CHART / "examples" / "gitops" / "flux.yaml")
    repository, release = found["OCIRepository"], found["HelmRelease"]["spec"]

    assert release["chartRef"] == {"kind": "OCIRepository", "name": repository["metadata"]["name"]}
    assert repository["spec"]["url"].endswith(f"/{ABOUT['name']}")
    assert repository["spec"]["ref"] == {"tag": ABOUT["version"]}
    # test_disruption.py: an upgrade by Helm 3 renders the count that runs, which the autoscaler changes later.
    assert release["driftDetection"]["ignore"] == [{"paths": ["/spec/replicas"], "target": {"kind": "Deployment"}}]
    assert (repository["apiVersion"], found["HelmRelease"]["apiVersion"]) == (
        "source.toolkit.fluxcd.io/v1",
        "helm.toolkit.fluxcd.io/v2",
    )


@pytest.mark.parametrize("file", GITOPS, ids=lambda file: file.stem)
def test_no_rendering_has_a_secret_or_a_count_that_a_sync_would_set_back(file: Path) -> None:
    renderer = Renderer()
    try:
        rendered = renderer(below=values_of(file))
    finally:
        renderer.close()

    assert rendered.all("Secret") == []
    assert "replicas" not in rendered.one("Deployment", component="serving").spec
    tokens = (ROOT / "docs" / "operations" / "tokens.md").read_text()
    made = re.findall(r"create secret generic (\S+) ", tokens)
    assert values_of(file)["auth"]["existingSecret"] in made
