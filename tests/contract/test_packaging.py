"""What pip installs: the wheel's extras, and that each is enough for what it promises."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from packaging.requirements import Requirement
from setuptools.config.pyprojecttoml import load_file

from needs import needs

ROOT = Path(__file__).parents[2]
ABOUT = load_file(ROOT / "pyproject.toml")["project"]
EXTRAS: dict[str, list[str]] = ABOUT["optional-dependencies"]


def locked(name: str) -> set[str]:
    return set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / f"{name}.txt").read_text(), re.MULTILINE))


def required(extra: str) -> set[str]:
    """The packages of an extra, those of the extras it names included."""
    found = {Requirement(each).name for each in ABOUT["dependencies"]}
    for each in map(Requirement, EXTRAS[extra]):
        if each.name == ABOUT["name"]:
            found = found.union(*map(required, each.extras))
        else:
            found.add(each.name)
    return found


@pytest.mark.parametrize(("extra", "lock"), [("cube", "cube"), ("local", "run"), ("local", "dev")])
def test_a_lock_holds_every_package_of_its_extra(extra: str, lock: str) -> None:
    assert required(extra) <= locked(lock)


def test_paddle_is_in_the_extras_of_what_trains_alone() -> None:
    assert [extra for extra in EXTRAS if "paddlepaddle" in required(extra)] == ["trainer", "local", "tune"]
    assert "paddlepaddle" not in locked("cube")


class Installed(NamedTuple):
    """An environment that holds the wheel with one extra."""

    folder: Path

    def run(self, *command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            capture_output=True,
            text=True,
            cwd=self.folder,
            check=False,
        )


def interpreter(name: str) -> str | None:
    """The newest Python of this machine above those that Paddle runs on, or this one."""
    if name == "this":
        return sys.executable
    found = (shutil.which(f"python3.{minor}") for minor in (14, 13))
    # A shim of pyenv may stand for a version that is not chosen.
    return next((each for each in found if each and not subprocess.run([each, "-c", ""], check=False).returncode), None)


@pytest.fixture(scope="module", params=["this", "newer"])
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The wheel with [client], from a registry."""
    if (python := interpreter(request.param)) is None:
        pytest.skip(needs("Python 3.13 or 3.14", "uv python install 3.14"))
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    # Building writes beside the sources.
    source = folder / "source"
    shutil.copytree(ROOT / "python", source / "python", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, source)
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run(build, check=True, capture_output=True)
    [wheel] = folder.glob("elastic_ctr-*.whl")
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder / "venv")], check=True, capture_output=True)
    target = ["--python", str(folder / "venv" / "bin" / "python"), "install", "--retries", "0", f"{wheel}[client]"]
    done = subprocess.run([*pip, *target], capture_output=True, text=True, check=False)
    if "Failed to establish a new connection" in done.stderr or "No matching distribution" in done.stderr:
        pytest.skip(needs("a package registry", "make test on a machine that reaches PyPI or a mirror of it"))
    assert done.returncode == 0, done.stderr
    return Installed(folder / "venv")


ASK = """
import asyncio, sys
from elastic_ctr.serving.client import AsyncServingClient, ServingClient, ServingUnavailable

assert not {"numba", "paddle", "grpc", "uvicorn", "pydantic", "typing_extensions"} & set(sys.modules)
rows = [{"user": "u7", "price": 12.5, "tags": ["a", "b"]}, {}]
try:
    ServingClient("127.0.0.1:1", timeout_seconds=0.5).predict_rows(rows)
except ServingUnavailable as failed:
    print(failed)


async def ask():
    async with AsyncServingClient(["127.0.0.1:1"], timeout_seconds=0.5) as client:
        await client.predict_rows(rows)

try:
    asyncio.run(ask())
except ServingUnavailable as failed:
    print(failed)
"""


def test_the_client_alone_is_small_and_asks_for_predictions_with_numpy_alone(client: Installed) -> None:
    done = client.run("python", "-W", "error", "-c", ASK)

    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition(": ")[0] for line in done.stdout.splitlines()] == ["127.0.0.1:1"] * 2


def test_help_works_without_extras_and_an_absent_command_names_its_extra(client: Installed) -> None:
    whole, absent = client.run("elastic-ctr", "--help"), client.run("elastic-ctr", "master")

    assert whole.returncode == 0, whole.stderr
    assert "cube-transfer" in whole.stdout
    assert (absent.returncode, absent.stdout) == (2, "")
    assert absent.stderr.endswith("is not installed: install elastic-ctr's wheel with [cube]\n")
