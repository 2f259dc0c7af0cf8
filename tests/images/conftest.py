"""Images as a container runtime sees them; each test needs docker and the image, and says so where they are not."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from images.containers import Container, Image, Start

DOCKER = os.environ.get("DOCKER", "docker")
PREFIX = os.environ.get("ELASTIC_CTR_IMAGES", "elastic-ctr")
TAG = os.environ.get("ELASTIC_CTR_TAG", "dev")


def _image(name: str, made_by: str) -> Image:
    if shutil.which(DOCKER) is None:
        pytest.skip(f"there is no {DOCKER} here to run images with")
    if subprocess.run([DOCKER, "info"], capture_output=True, check=False).returncode:
        pytest.skip(f"{DOCKER} does not answer")
    image = Image(DOCKER, name)
    if not image.there():
        pytest.skip(f"there is no image {name}; {made_by} builds it")
    return image


@pytest.fixture(params=["cube", "trainer"])
def image(request: pytest.FixtureRequest) -> Image:
    """Each image of the project in turn, but that of serving, whose layers are the trainer's."""
    return _image(f"{PREFIX}/{request.param}:{TAG}", "make images")


@pytest.fixture
def images() -> Callable[[str], Image]:
    """An image of the project by its name."""
    return lambda name: _image(f"{PREFIX}/{name}:{TAG}", "make images")


@pytest.fixture
def stand_in() -> Callable[[str], Image]:
    """An image that the cluster tests bring with them, by its name."""
    return lambda name: _image(f"{PREFIX}-test/{name}:{TAG}", "make cluster-images tracking-image")


@pytest.fixture
def start() -> Iterator[Start]:
    """Runs a container until the test ends."""
    running: list[Container] = []

    def run(
        image: Image,
        *words: str,
        mounts: dict[Path, str] | None = None,
        ports: Sequence[int] = (),
        options: Sequence[str] = (),
    ) -> Container:
        running.append(image.start(*words, mounts=mounts or {}, ports=ports, options=options))
        return running[-1]

    yield run
    for container in reversed(running):
        container.remove()
