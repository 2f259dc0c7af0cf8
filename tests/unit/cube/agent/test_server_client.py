"""What an agent makes of the answers of its cube-server."""

import pytest

from credentials import tokens
from cube.agent.played import Played
from elastic_ctr.cube.agent import server_client
from elastic_ctr.cube.agent.server_client import LoadedParts, Server, ServerGone, ServerRefused, ServerUnreachable
from elastic_ctr.runtime.http import serving


async def test_a_server_that_refuses_or_is_silent_is_told_apart(played: Played) -> None:
    async with serving(played.server(), "127.0.0.1", 0) as door:
        stranger = Server(f"http://127.0.0.1:{door.port}", tokens("wrong"))
        assert await stranger.loaded() == LoadedParts(
            versions={}, last_asked_seconds={}, last_lookup_seconds=None, draining=False, damaged={}
        )

        with pytest.raises(ServerRefused, match="refused /drain with 401: this call needs the header"):
            await stranger.drain(draining=True)
    with pytest.raises(ServerGone, match="does not answer"):
        await stranger.loaded()
    await stranger.close()


async def test_a_server_that_is_slow_is_not_taken_for_one_that_is_gone(
    played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_client, "_ASK_SECONDS", 0.1)
    played.slow = True
    async with serving(played.server(), "127.0.0.1", 0) as door:
        server = Server(f"http://127.0.0.1:{door.port}", tokens("secret"))
        with pytest.raises(ServerUnreachable, match="does not answer") as silent:
            await server.drain(draining=True)
        await server.close()

    assert not isinstance(silent.value, ServerGone)
