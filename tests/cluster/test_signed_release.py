"""A release is pushed to a registry and signed there; a policy of the cluster admits it by its signature alone."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import helm_python
import pytest
import yaml
from release.build import BuiltImages, write_images
from release.oci import write_chart

from cluster.admission import policy_controller
from cluster.clicks_volume import write_clicks
from cluster.conftest import BUILD, FILE_SERVER_IMAGE, IMAGE_TAG, ROOT, small_values
from cluster.kube import Kube, eventually
from cluster.registry import Registry, registry
from cluster.release import RESTRICTED, Release, Values, merged
from cluster.test_backup import SMALL, answers
from elastic_ctr import __version__ as VERSION
from needs import program
from pipeline.page_commands import blocks

# tests/unit/test_release_files.py has the page's commands until the push in `make test`.
pytestmark = [pytest.mark.functional, pytest.mark.nightly]
NAMESPACE = "elastic-ctr-signed"
PAGE = ROOT / "docs" / "operations" / "release.md"
WORK = BUILD / "signed"
# The time of the files in the release, in seconds since 1970: any.
TIME = 1_700_000_000


def section(heading: str) -> str:
    return PAGE.read_text().partition(f"## {heading}\n")[2].partition("\n## ")[0]


class Page:
    """Runs the page's commands with the registry, the namespace and the file-server's image of this machine."""

    def __init__(self, found: Registry, environment: dict[str, str]) -> None:
        self.registry = found.address
        self._environment = environment | {"SSL_CERT_FILE": str(found.ca), "COSIGN_PASSWORD": "of a test"}

    def here(self, text: str) -> str:
        nginx = "docker://docker.io/nginxinc/nginx-unprivileged:1.28.0"
        assert text.count("docker.io") == text.count(nginx)
        text = text.replace(nginx, f"docker-daemon:{FILE_SERVER_IMAGE}").replace("registry.example.com", self.registry)
        return text.replace(" ads", f" {NAMESPACE}")

    def run(self, command: str, folder: Path = WORK) -> "subprocess.CompletedProcess[str]":
        """One block of commands without `make`: the release is of the images that the cluster has."""
        lines = [line for line in command.splitlines() if not line.startswith("make ")]
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", self.here("\n".join(lines))],
            cwd=folder,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )

    def follow(self, heading: str, folder: Path = WORK) -> None:
        """All blocks of a section."""
        for block in blocks(section(heading), "sh"):
            done = self.run(block, folder)
            assert done.returncode == 0, (block, done.stdout, done.stderr)


def made_release(folder: Path) -> None:
    """The chart and the images of this machine, as `make release` writes them."""
    folder.mkdir(parents=True)
    packed = Path(helm_python.package(ROOT / "charts/elastic-ctr", destination=folder))
    write_chart(packed, folder / f"elastic-ctr-chart-{VERSION}.oci.tar", TIME)
    base = os.environ.get("PYTHON_IMAGE", "python:3.11-slim-bookworm")
    write_images(BuiltImages("docker", "elastic-ctr", base), folder, IMAGE_TAG, TIME)
    for each in folder.glob(f"*-{IMAGE_TAG}-*.oci.tar"):
        each.rename(folder / each.name.replace(f"-{IMAGE_TAG}-", f"-{VERSION}-"))


@pytest.fixture
def page(kube: Kube, workers: list[str]) -> Iterator[Page]:
    """A folder with the files of a release; the registry has none of them yet."""
    for name in ("skopeo", "cosign", "registry", "docker"):
        program(name)
    shutil.rmtree(WORK, ignore_errors=True)
    made_release(WORK / "build" / "release")
    with registry(WORK / "registry", workers) as found, policy_controller(kube, found.ca):
        yield Page(found, kube.env)
    shutil.rmtree(WORK)


@pytest.mark.timeout(2400)
def test_a_policy_admits_a_release_by_its_key_and_refuses_it_unsigned_or_signed_by_another(
    page: Page, kube: Kube, tell: Callable[..., None]
) -> None:
    own: Values = {
        "data": {"end": "20200401/00"},
        "dataVolume": {"existingClaim": "clicks"},
        "image": {"registry": page.registry, "tag": ""},
    }
    values = merged(merged(small_values("file:///data", "/"), SMALL), own)
    # The chart's own, as the page copies it.
    del values["fileServer"]["image"]
    (WORK / "values.yaml").write_text(yaml.safe_dump(values))
    release = Release(kube, "ctr", NAMESPACE, BUILD / "values")
    release.values = values
    kube.namespace(NAMESPACE, RESTRICTED)
    write_clicks(kube, NAMESPACE, 1, 20_000, "easy")
    [policy] = blocks(section("Admit signed images alone"), "yaml")
    (WORK / "signed-images.yaml").write_text(page.here(policy))
    [install] = blocks(section("Install from the registry"), "sh")
    verify, *helm = install.splitlines()

    page.follow("Make")
    page.follow("Push")
    page.follow("Admit signed images alone")
    eventually("the policy is in force", lambda: in_force(kube), 60)
    unsigned = page.run(verify), page.run("\n".join(helm))
    other = WORK / "other"
    other.mkdir()
    for each in WORK.glob("*.digest"):
        shutil.copy(each, other)
    page.follow("Make", other)
    page.follow("Sign in the registry", other)
    by_another = page.run(verify), page.run("\n".join(helm))
    page.follow("Sign in the registry")
    try:
        page.follow("Install from the registry")
        live = release.wait_live()
        release.wait_rolled_out()
        probabilities = answers(release, ["1:0 2:1", "3:2 4:3"], live)
        images = {container["image"] for pod in release.pods() for container in pod["spec"]["containers"]}
    finally:
        release.uninstall()
        kube.delete("namespace", NAMESPACE, wait=False)

    refusals = {"unsigned": unsigned, "signed by another key": by_another}
    tell(
        refused={key: [each.stderr.strip()[-700:] for each in pair] for key, pair in refusals.items()},
        probabilities=probabilities,
    )
    assert all(each.returncode for pair in refusals.values() for each in pair)
    assert "no signatures found" in unsigned[0].stderr
    assert 'admission webhook "policy.sigstore.dev" denied the request' in unsigned[1].stderr
    assert "no signatures found" in unsigned[1].stderr
    assert "invalid signature" in by_another[0].stderr
    assert 'admission webhook "policy.sigstore.dev" denied the request' in by_another[1].stderr
    assert "invalid signature" in by_another[1].stderr
    assert all(0 < each < 1 for each in probabilities)
    assert {each.partition("@")[2] for each in images} <= {
        (WORK / f"{name}.digest").read_text().strip() for name in ("cube", "trainer", "serving", "nginx")
    }


def in_force(kube: Kube) -> bool:
    found = kube.get("clusterimagepolicy", "elastic-ctr")
    conditions = {each["type"]: each["status"] for each in (found or {}).get("status", {}).get("conditions", [])}
    return conditions.get("Ready") == "True"
