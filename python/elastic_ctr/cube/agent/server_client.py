"""Client of the admin API of the cube-server beside an agent."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from elastic_ctr.cube.agent.drain_client import error_sentence
from elastic_ctr.runtime.auth import Tokens, bearer
from elastic_ctr.store.versions.manifest import Record

_LAYERS = ("full", "overlay", "recent")
# A load returns after every worker has mapped and checked the files.
_LOAD_SECONDS = 600.0
_ASK_SECONDS = 5.0


class ServerRefused(OSError):
    """The server refused the call; the text has the reason."""


class ServerUnreachable(OSError):
    """The server does not answer; the text has address and reason."""


class ServerGone(ServerUnreachable):
    """The server refuses connections: it has ended or has not started. A slow server still accepts them."""


class LoadedParts(Record):
    """The loaded partitions by version, and the seconds since their last lookups (None: never).

    `damaged`: version -> partition -> sentence, for partitions that the server does not answer until they are loaded again.
    """

    versions: dict[int, frozenset[int]]
    last_asked_seconds: dict[int, float | None]
    last_lookup_seconds: float | None
    draining: bool
    damaged: dict[int, dict[int, str]]


class Server:
    """Orders to the server beside this agent."""

    def __init__(self, url: str, tokens: Tokens | None) -> None:
        self._url = url
        self._tokens = tokens
        self._client = httpx.AsyncClient(trust_env=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def loaded(self) -> LoadedParts:
        """Raises ServerUnreachable."""
        return LoadedParts.model_validate(await self._ask("GET", "loaded", None, _ASK_SECONDS))

    async def load(
        self, version: int, dim: int, partitions: int, parts: Mapping[int, Sequence[Path]]
    ) -> dict[int, frozenset[int]]:
        """Load partition -> (full part, overlays, the lowest first). Return all loaded partitions by version.

        Raises ServerRefused, ServerUnreachable.
        """
        files = {
            str(partition): dict(zip(_LAYERS[: len(own)], map(str, own), strict=True))
            for partition, own in sorted(parts.items())
        }
        body = {"version": version, "dim": dim, "partitions": partitions, "parts": files}
        return _versions_in(await self._ask("POST", "load", body, _LOAD_SECONDS))

    async def unload(self, version: int, partitions: Iterable[int]) -> dict[int, frozenset[int]]:
        """Return the partitions that stay loaded, by version. Raises ServerRefused, ServerUnreachable."""
        body = {"version": version, "partitions": sorted(partitions)}
        return _versions_in(await self._ask("POST", "unload", body, _LOAD_SECONDS))

    async def drain(self, *, draining: bool) -> None:
        """Raises ServerRefused, ServerUnreachable."""
        await self._ask("POST", "drain", {"draining": draining}, _ASK_SECONDS)

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
        try:
            answer = await self._client.request(
                method, f"{self._url}/{path}", json=body, timeout=seconds, headers=bearer(self._tokens)
            )
        except httpx.HTTPError as failed:
            kind = ServerGone if isinstance(failed, httpx.ConnectError) else ServerUnreachable
            raise kind(
                f"the cube-server at {self._url} does not answer ({type(failed).__name__}: {failed}); "
                "it is asked again until it does"
            ) from failed
        if answer.status_code >= 400:
            reason = error_sentence(answer.content)
            raise ServerRefused(f"the cube-server refused /{path} with {answer.status_code}: {reason}")
        return dict(answer.json())


def _versions_in(answer: dict[str, Any]) -> dict[int, frozenset[int]]:
    return {int(number): frozenset(held) for number, held in answer["versions"].items()}
