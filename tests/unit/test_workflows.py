"""Workflows of a forge: linted, with the least rights, and made of commands that this repository has."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from needs import program

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / ".github/workflows").glob("*.yaml"))
TARGETS = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))


def of(file: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(file.read_text())
    return found


def steps(file: Path) -> list[dict[str, Any]]:
    return [step for job in of(file)["jobs"].values() for step in job.get("steps", [])]


def ids(file: Path) -> str:
    return file.stem


def test_there_is_one_for_changes_and_one_for_releases() -> None:
    assert [file.name for file in FILES] == ["ci.yaml", "release.yaml"]


@pytest.mark.parametrize("file", FILES, ids=ids)
def test_actionlint_has_nothing_to_say(file: Path) -> None:
    done = subprocess.run([program("actionlint"), str(file)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("file", FILES, ids=ids)
def test_an_action_is_pinned_to_a_commit_and_names_its_version(file: Path) -> None:
    uses = re.findall(r"uses: (\S+)(.*)", file.read_text())

    assert uses
    for action, comment in uses:
        if not action.startswith("./"):
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action), action
            assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), action


@pytest.mark.parametrize("file", FILES, ids=ids)
def test_a_workflow_may_read_and_one_job_may_write(file: Path) -> None:
    rights = [of(file)["permissions"], *(job.get("permissions", {}) for job in of(file)["jobs"].values())]
    writing = [each for each in rights if "write" in each.values()]

    assert of(file)["permissions"] in ({}, {"contents": "read"})
    assert writing == (
        [{"contents": "write", "packages": "write", "id-token": "write"}] if file.stem == "release" else []
    )
    checkouts = [step for step in steps(file) if "checkout" in step.get("uses", "")]
    assert {step["with"]["persist-credentials"] for step in checkouts} == {False}


@pytest.mark.parametrize("file", FILES, ids=ids)
def test_a_workflow_runs_what_this_repository_has(file: Path) -> None:
    commands = "\n".join(step.get("run", "") for step in steps(file))

    assert set(re.findall(r"\bmake ([a-z-]+)", commands)) <= TARGETS
    scripts = re.findall(r"(?:^|\s)(tools/\w+|\.ci/\w+)", commands)
    assert scripts
    assert [each for each in scripts if not (ROOT / each).exists()] == []
    # An expression within a command would run text of the one who names a branch.
    assert "${{" not in commands


def test_a_release_needs_what_every_change_must_pass() -> None:
    jobs = of(FILES[1])["jobs"]

    assert jobs["ci"]["uses"] == "./.github/workflows/ci.yaml"
    assert (jobs["build"]["needs"], jobs["publish"]["needs"]) == ("ci", ["build", "upgrade"])


def test_a_release_is_upgraded_to_from_the_last_tag_before_it(tmp_path: Path) -> None:
    [find, upgrade] = of(FILES[1])["jobs"]["upgrade"]["steps"][1:]
    # Tests that `make test` runs have its MAKEFLAGS: another make would then print the folders that it enters and leaves.
    chosen = subprocess.run(
        ["make", "--no-print-directory", "--eval", "before: ; @echo $(BEFORE)", "before"],
        capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ, "ELASTIC_CTR_BEFORE": "v0.1.0"},
    )  # fmt: skip

    def git(*words: str) -> None:
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", *words],
            cwd=tmp_path,
            check=True,
            capture_output=True,
        )

    def found() -> str:
        output = tmp_path / "output"
        output.unlink(missing_ok=True)
        subprocess.run(
            ["bash", "-e", "-c", find["run"]],
            cwd=tmp_path,
            check=True,
            capture_output=True,
            env={**os.environ, "GITHUB_OUTPUT": str(output)},
        )
        return output.read_text()

    git("init")
    git("commit", "--allow-empty", "-m", "one")
    git("tag", "v0.1.0")
    assert found() == "tag=\n"
    git("commit", "--allow-empty", "-m", "two")
    git("tag", "v0.2.0")
    assert found() == "tag=v0.1.0\n"
    assert upgrade["if"] == "steps.before.outputs.tag != ''"
    assert chosen.stdout == "v0.1.0\n"


def test_templates_of_issues_are_forms() -> None:
    forms = [of(file) for file in sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yaml"))]

    assert [form["name"] for form in forms] == ["Fault", "Feature"]
    for form in forms:
        assert {each["type"] for each in form["body"]} <= {"input", "dropdown", "textarea"}
        assert len({each["id"] for each in form["body"]}) == len(form["body"])
