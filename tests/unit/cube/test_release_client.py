import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from credentials import access, tokens
from elastic_ctr.cube.release import Placement, ReaderReport, ReleaseDocument
from elastic_ctr.cube.release_client import ReleaseClient
from elastic_ctr.runtime.auth import Right
from elastic_ctr.runtime.http import HttpServer, application, read_record


def document(generation: int, revision: int, live: int | None = None) -> ReleaseDocument:
    return ReleaseDocument(generation=generation, revision=revision, placement=Placement(shards=1), live=live)


class Door:
    """Answers as told, a question at a time; an empty list answers 304."""

    def __init__(self) -> None:
        self.answers: list[ReleaseDocument | bytes | int] = []
        self.asked: list[str] = []
        self.reports: list[ReaderReport] = []
        self._server = HttpServer(
            application([Route("/release", self._release), Route("/readers", self._readers, methods=["POST"])]),
            "127.0.0.1",
            0,
        )
        self.url = f"http://127.0.0.1:{self._server.port}"
        self.start, self.stop = self._server.start, self._server.stop

    async def _release(self, request: Request) -> Response:
        self.asked.append(request.url.query)
        if not self.answers:
            await asyncio.sleep(0.02)
            return Response(status_code=304)
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            return Response(status_code=answer)
        return Response(answer if isinstance(answer, bytes) else answer.to_json())

    async def _readers(self, request: Request) -> Response:
        access("secret").require(request, Right.INTERNAL)
        self.reports.append(await read_record(request, ReaderReport))
        return Response(status_code=204)


@pytest.fixture
async def door() -> AsyncIterator[Door]:
    door = Door()
    await door.start()
    yield door
    await door.stop()


async def followed(door: Door, until: Callable[[ReleaseClient], bool]) -> tuple[ReleaseClient, list[Any]]:
    taken: list[ReleaseDocument] = []
    client = ReleaseClient(door.url, None, taken.append)
    task = asyncio.create_task(client.run())
    try:
        while not until(client):
            await asyncio.sleep(0.005)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await client.close()
    return client, [(each.generation, each.revision) for each in taken]


async def test_it_takes_what_is_newer_and_ignores_lower_generations(door: Door) -> None:
    door.answers = [document(2, 1), document(2, 3), document(1, 9), document(2, 2), document(3, 0)]

    client, taken = await followed(door, lambda client: client.document == document(3, 0))

    assert taken == [(2, 1), (2, 3), (3, 0)]
    assert client.error is None


async def test_it_waits_for_what_follows_the_last_and_asks_anew_after_a_silence(door: Door) -> None:
    door.answers = [document(1, 7)]

    await followed(door, lambda _: len(door.asked) >= 4)

    assert door.asked[0] == ""
    assert "after=7" in door.asked[1]
    assert door.asked[2] == ""


@pytest.mark.parametrize("nonsense", [500, 404, b"not json", b"{}", b'{"generation": 0}'])
async def test_nonsense_keeps_what_is_known_and_is_asked_again(door: Door, nonsense: bytes | int) -> None:
    door.answers = [document(1, 1, live=7), nonsense, document(1, 2, live=8)]

    client, taken = await followed(door, lambda client: client.document == document(1, 2, live=8))

    assert taken == [(1, 1), (1, 2)]
    assert client.error is None


async def test_a_transfer_that_is_gone_is_named_and_nothing_is_forgotten(door: Door) -> None:
    door.answers = [document(1, 1, live=7)]
    taken: list[ReleaseDocument] = []
    client = ReleaseClient(door.url, None, taken.append)
    await client.refresh()

    await door.stop()
    await client.refresh()
    await client.report(ReaderReport(pod="serving-0"))
    await client.close()

    assert client.document == document(1, 1, live=7)
    assert client.error is not None
    assert door.url in client.error


async def test_reports_carry_the_token(door: Door) -> None:
    client = ReleaseClient(door.url, tokens("secret"), lambda _: None)
    report = ReaderReport(pod="serving-0", validated=(7,), max_abs_diff={7: 1e-7}, document=document(1, 1))

    await client.report(report)
    await client.close()

    assert door.reports == [report]
