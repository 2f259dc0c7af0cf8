import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest

from credentials import access, tokens
from cube.published import PARTITIONS, publish_version
from elastic_ctr.config.cube_settings import CubeTransferConfig
from elastic_ctr.config.role_files import CubeBuilderFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.cube.builder.build_server import CubeBuilder, builder_metrics, builder_routes
from elastic_ctr.cube.builder.job import BuildFailed
from elastic_ctr.cube.release import BuildProgress
from elastic_ctr.runtime.auth import bearer
from elastic_ctr.runtime.http import HttpThread, RequestRefused, application
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.published_files import read_dictionary

MANY = np.arange(1, 301, dtype=np.uint64)


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


def builder_of(store: FileStore, scratch: Path) -> CubeBuilder:
    settings = CubeTransferConfig(scratch_dir=str(scratch))
    return CubeBuilder(CubeBuilderFile(store=StoreConfig(url=store.url), cube_transfer=settings))


@pytest.fixture
def builder(store: FileStore, tmp_path: Path) -> Iterator[CubeBuilder]:
    made = builder_of(store, tmp_path / "scratch")
    made.start()
    yield made
    made.stop()


def finished(ask: Callable[[], BuildProgress]) -> BuildProgress:
    while (progress := ask()).stage not in {"done", "failed"}:
        time.sleep(0.01)
    return progress


def test_an_order_is_built_reported_and_joined(store: FileStore, builder: CubeBuilder, tmp_path: Path) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    door = HttpThread(
        application(builder_routes(builder, access("secret")), metrics=builder_metrics(builder)), "127.0.0.1", 0
    )
    door.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{door.port}", headers=bearer(tokens("secret"))) as client:
        first = client.post("/build", json={"version": 10})
        joined = client.post("/build", json={"version": 10})
        done = finished(lambda: BuildProgress.model_validate_json(client.get("/build").content))
        again = client.post("/build", json={"version": 10})
        stranger = client.post("/build", json={"version": 10}, headers={"authorization": "no"})
        metrics = client.get("/metrics").text
    door.stop()

    assert [first.status_code, joined.status_code, stranger.status_code] == [200, 200, 401]
    assert again.json()["stage"] == done.stage == "done"
    assert (done.version, done.partitions, done.partitions_done) == (10, PARTITIONS, PARTITIONS)
    assert done.seconds_by_stage.keys() == {"reading", "building", "publishing"}
    assert read_dictionary(store, 10).keys == 300
    assert "elastic_ctr_cube_builder_failed 0.0" in metrics
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_request_that_waits_for_a_build_is_answered_when_the_build_is_over(store: FileStore, tmp_path: Path) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    builder = builder_of(store, tmp_path / "scratch")
    builder.order(10)
    door = HttpThread(application(builder_routes(builder, access(None))), "127.0.0.1", 0)
    door.start()
    with httpx.Client(base_url=f"http://127.0.0.1:{door.port}") as client:
        before = client.get("/build", params={"wait": 0.01}).json()
        strange = client.get("/build", params={"wait": "long"})
        builder.start()
        after = builder.progress_within(600)
        over = client.get("/build", params={"wait": 600}).json()
    door.stop()
    builder.stop()

    assert before["stage"] == "planning"
    assert (strange.status_code, strange.json()["error"]) == (400, "wait: it is no number of seconds")
    assert after.stage == over["stage"] == "done"


def test_another_order_waits_until_the_first_is_done(store: FileStore, tmp_path: Path) -> None:
    idle = builder_of(store, tmp_path / "scratch")
    idle.order(10)

    with pytest.raises(RequestRefused, match="version 10 is being built; order 11 when it is done"):
        idle.order(11)


def test_a_failed_build_says_whether_trying_again_can_help(
    store: FileStore, builder: CubeBuilder, tmp_path: Path
) -> None:
    builder.order(9)
    missing = finished(lambda: builder.progress)
    publish_version(store, tmp_path / "work", 10, MANY)
    (store.root / layout.cube_file(10, "base", 0, PARTITIONS)).write_bytes(b"damaged")
    builder.order(10)
    damaged = finished(lambda: builder.progress)
    store.put_bytes(b"damaged", layout.dictionary_manifest(11))
    builder.order(11)
    unreadable = finished(lambda: builder.progress)

    assert (missing.final, damaged.final, unreadable.final) == (False, True, True)
    assert "output/versions/9.json is not in" in str(missing.error)
    assert "is not what its manifest says" in str(damaged.error)
    assert layout.dictionary_manifest(11) in str(unreadable.error)


def test_a_failed_version_may_be_ordered_again(store: FileStore, builder: CubeBuilder, tmp_path: Path) -> None:
    builder.order(10)
    assert finished(lambda: builder.progress).stage == "failed"
    publish_version(store, tmp_path / "work", 10, MANY)

    builder.order(10)

    assert finished(lambda: builder.progress).stage == "done"


def test_a_killed_worker_process_fails_the_build_and_not_the_next(
    store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish_version(store, tmp_path / "work", 10, MANY)
    builder = builder_of(store, tmp_path / "scratch")
    with monkeypatch.context() as patched:
        patched.setattr("elastic_ctr.cube.builder.build_server.run_tasks", die)
        with pytest.raises(BuildFailed, match="was killed") as failed:
            builder.build(10)

    assert not failed.value.final
    builder.build(10)
    assert read_dictionary(store, 10).keys == 300
    builder.start()
    builder.stop()


def die(_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)
