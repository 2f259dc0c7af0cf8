import http.server
import subprocess
import sys
import threading

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from credentials import access, tokens
from cube.agent.doors import draining_agent
from elastic_ctr.cube.agent import drain_client as module
from elastic_ctr.cube.agent.drain_client import DrainRefused, run_cube_drain
from elastic_ctr.runtime.auth import Right
from elastic_ctr.runtime.http import HttpThread, application
from elastic_ctr.runtime.lifecycle import listen


def test_a_pod_is_drained_when_its_agent_has_ended() -> None:
    with draining_agent("secret") as (door, told):
        assert run_cube_drain(agent_url=f"http://127.0.0.1:{door.port}", tokens=tokens("secret"))

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


def test_an_agent_that_refuses_says_why() -> None:
    async def drain(request: Request) -> Response:
        access("secret").require(request, Right.INTERNAL)
        return Response(status_code=202)

    door = HttpThread(application([Route("/drain", drain, methods=["POST"])]), "127.0.0.1", 0).start()

    with pytest.raises(DrainRefused, match="answers 401: this call needs the header"):
        run_cube_drain(agent_url=f"http://127.0.0.1:{door.port}", tokens=tokens("another"))

    door.stop()


def test_an_agent_too_busy_to_answer_has_not_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ASK_SECONDS", 0.05)
    asked = threading.Semaphore(0)
    answering = threading.Event()

    class Busy(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.release()
            answering.wait(60)

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Busy)
    serving = threading.Thread(target=server.serve_forever, args=(0.01,))
    serving.start()
    found: list[bool] = []
    draining = threading.Thread(
        target=lambda: found.append(run_cube_drain(agent_url=f"http://127.0.0.1:{server.server_port}"))
    )
    draining.start()

    assert all(asked.acquire(timeout=60) for _ in range(3))

    assert not found
    answering.set()
    server.shutdown()
    server.server_close()
    serving.join()
    draining.join()
    assert found == [True]


def test_draining_imports_nothing_but_the_standard_library() -> None:
    listed = "import sys, elastic_ctr.cube.agent.drain_client; print(*{name.partition('.')[0] for name in sys.modules})"

    done = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True)

    assert not {"httpx", "numpy", "pydantic", "starlette", "uvicorn"} & set(done.stdout.split())
