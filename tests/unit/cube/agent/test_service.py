import threading
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from elastic_ctr.cube.agent.service import run_cube_agent, run_cube_drain
from elastic_ctr.runtime.http import HttpThread, application, require_token
from elastic_ctr.runtime.lifecycle import listen


def test_a_pod_is_drained_when_its_agent_has_ended() -> None:
    told = threading.Event()

    async def drain(request: Request) -> Response:
        require_token(request, "secret")
        told.set()
        return Response(status_code=202)

    door = HttpThread(application([Route("/drain", drain, methods=["POST"])]), "127.0.0.1", 0).start()

    def end_when_told() -> None:
        told.wait(60)
        door.stop()

    ending = threading.Thread(target=end_when_told)
    ending.start()

    assert run_cube_drain(agent_url=f"http://127.0.0.1:{door.port}", token="secret")

    ending.join()
    assert told.is_set()


def test_an_agent_that_is_away_has_ended_already() -> None:
    with listen("127.0.0.1", 0) as free:
        port = free.getsockname()[1]

    assert run_cube_drain(agent_url=f"http://127.0.0.1:{port}")


def test_a_drain_that_outlasts_grace_says_so() -> None:
    async def drain(request: Request) -> Response:
        return Response(status_code=202)

    door = HttpThread(application([Route("/drain", drain, methods=["POST"])]), "127.0.0.1", 0).start()

    assert not run_cube_drain(agent_url=f"http://127.0.0.1:{door.port}", grace_seconds=0.0)

    door.stop()


def test_a_pod_without_a_shard_in_its_name_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not end in -s<shard>-<replica>"):
        run_cube_agent(
            pod="cube-0", address="127.0.0.1:1", server_url="http://127.0.0.1:1", transfer_url="http://127.0.0.1:1",
            store_url=f"file://{tmp_path}", cache_dir=tmp_path,
        )  # fmt: skip
