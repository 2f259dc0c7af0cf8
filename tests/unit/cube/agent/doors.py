"""An agent's door, without the agent."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from credentials import access
from elastic_ctr.runtime.auth import Right
from elastic_ctr.runtime.http import HttpThread, application


@contextmanager
def draining_agent(token: str) -> Iterator[tuple[HttpThread, threading.Event]]:
    """It closes when it is told to drain; the event says that it was."""
    told = threading.Event()

    async def drain(request: Request) -> Response:
        access(token).require(request, Right.INTERNAL)
        told.set()
        return Response(status_code=202)

    door = HttpThread(application([Route("/drain", drain, methods=["POST"])]), "127.0.0.1", 0).start()

    def end_when_told() -> None:
        told.wait(60)
        door.stop()

    ending = threading.Thread(target=end_when_told)
    ending.start()
    yield door, told
    told.set()
    ending.join()
