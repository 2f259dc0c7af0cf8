"""Licence and version: every file that has one has the same. And no text leads to a public registry that has nothing of this project."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from release.facts import versions
from setuptools.config.pyprojecttoml import load_file

ROOT = Path(__file__).parents[2]
LICENCE = "Apache-2.0"
CHART = yaml.safe_load((ROOT / "charts/elastic-ctr/Chart.yaml").read_text())


def test_every_place_has_one_version() -> None:
    found = versions(ROOT)

    assert len(found) == 4
    assert len(set(found.values())) == 1, found
    supported = re.findall(r"^\| (\d+\.\d+)\.x \|", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert supported == [found["CITATION.cff"].rpartition(".")[0]]


def test_every_place_has_one_licence() -> None:
    project = load_file(ROOT / "pyproject.toml")["project"]

    assert project["license"] == LICENCE
    assert project["license-files"] == ["LICENSE", "NOTICE"]
    assert CHART["annotations"]["artifacthub.io/license"] == LICENCE
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["license"] == LICENCE
    for name in ("LICENSE", "tools/release/sbom.py", "docs/decisions/0028-licence.md"):
        assert LICENCE in (ROOT / name).read_text(), name
    assert "https://www.apache.org/licenses/LICENSE-2.0" in (ROOT / "LICENSE").read_text()


@pytest.mark.parametrize("image", ["cube", "trainer", "serving"])
def test_an_image_is_labelled_with_the_licence(image: str) -> None:
    assert f'org.opencontainers.image.licenses="{LICENCE}"' in (ROOT / "images" / image / "Dockerfile").read_text()


def test_the_chart_names_no_address_that_is_not_there() -> None:
    assert CHART.keys() & {"home", "sources", "icon"} == set()
    assert not re.search(r"https?://|\.io/elastic-ctr|elastic-ctr/(cube|trainer|serving):", yaml.safe_dump(CHART))


# A name that is free there could be taken by anyone.
PUBLIC = re.compile(
    r"pip install ['\"]?elastic[-_]ctr\b(?!-\d)|(docker|quay|ghcr|gcr)\.io/elastic-ctr|helm (repo add|install oci://(docker|ghcr|quay))|pypi\.org/project/elastic"
)


def test_no_text_leads_to_a_package_index_or_a_public_registry() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    if not listed:
        pytest.skip("this source is not a checkout of git")
    texts = [
        name
        for name in listed
        if re.search(r"\.(md|py|yaml|tpl|txt|toml|cff|sh)$|Dockerfile$", name)
        and not name.startswith(("tests/", "requirements/"))
    ]

    assert len(texts) > 500
    assert [name for name in texts if (ROOT / name).exists() and PUBLIC.search((ROOT / name).read_text())] == []
    assert PUBLIC.search("pip install 'elastic-ctr[cube]'")
    assert PUBLIC.search("docker pull ghcr.io/elastic-ctr/cube")
