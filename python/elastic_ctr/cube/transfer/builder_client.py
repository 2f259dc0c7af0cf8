"""The client of cube-builder: one order at a time, followed until it is done."""

import asyncio
import logging
import time
from typing import Any

import httpx
from pydantic import ValidationError

from elastic_ctr.cube.release import BuildProgress
from elastic_ctr.cube.transfer.state import REMEMBERED
from elastic_ctr.runtime.auth import Tokens, bearer
from elastic_ctr.runtime.growing_pause import growing_pause

log = logging.getLogger(__name__)

# Seconds of a long poll; the progress that cube-transfer shows is this old at most.
_WAIT_SECONDS = 0.5
_FIRST_POLL, _LONGEST_POLL = 0.01, 0.1
_LONGEST_BACK_OFF = 30.0


class BuilderUnreachable(OSError):
    """The builder does not answer; the text has address and reason."""


class Builder:
    """Orders builds. `progress` is the last answer, `error` the reason if the builder does not answer."""

    def __init__(self, url: str, tokens: Tokens | None) -> None:
        self._url = url
        self._tokens = tokens
        self._client = httpx.AsyncClient(timeout=10.0, trust_env=False)
        # The last version ordered, its failures in a row, and the end of the pause after them.
        self._last = (0, 0, 0.0)
        self.progress: BuildProgress | None = None
        self.error: str | None = None
        self.seconds: dict[int, BuildProgress] = {}

    async def close(self) -> None:
        await self._client.aclose()

    def may_try(self, version: int) -> bool:
        """True if the pause after the version's last failure is over."""
        return version != self._last[0] or time.monotonic() >= self._last[2]

    async def mend(self, version: int) -> BuildProgress:
        """Order damaged parts of a built version to be built again, and wait for the end. Raises only when cancelled."""
        try:
            progress = await self._ask("POST", version, mend=True)
            while progress.stage not in {"done", "failed"}:
                await asyncio.sleep(_LONGEST_POLL)
                progress = await self._ask("GET", version)
                if (progress.version, progress.mend) != (version, True):
                    progress = await self._ask("POST", version, mend=True)
        except BuilderUnreachable as silent:
            progress = BuildProgress(version=version, mend=True, stage="failed", error=str(silent))
        return progress

    async def build(self, version: int) -> BuildProgress:
        """Order a version and wait until it is done or failed. Raises only when cancelled."""
        try:
            progress, polls = await self._ask("POST", version), 0
            while progress.stage not in {"done", "failed"}:
                asked = time.monotonic()
                progress = await self._ask("GET", version)
                if progress.stage not in {"done", "failed"}:
                    # A builder of an earlier release answers at once, without a long poll.
                    polls += 1
                    pause = growing_pause(polls, _FIRST_POLL, _LONGEST_POLL)
                    await asyncio.sleep(max(0.0, asked + pause - time.monotonic()))
                if progress.version != version:
                    # A restarted builder has lost the order; the parts that it has published are kept.
                    progress = await self._ask("POST", version)
            self.error = None
        except BuilderUnreachable as silent:
            if self.error is None:
                log.warning("%s", silent)
            self.error = str(silent)
            progress = BuildProgress(version=version, stage="failed", error=str(silent))
        self.progress = progress
        if progress.stage == "done":
            self.seconds[version] = progress
            while len(self.seconds) > REMEMBERED:
                del self.seconds[min(self.seconds)]
            self._last = (version, 0, 0.0)
        else:
            failures = 1 + (self._last[1] if version == self._last[0] else 0)
            self._last = (version, failures, time.monotonic() + growing_pause(failures, 1.0, _LONGEST_BACK_OFF))
        return progress

    async def _ask(self, method: str, version: int, *, mend: bool = False) -> BuildProgress:
        # A builder of an earlier release rejects the key `mend`.
        order = {"version": version, "mend": True} if mend else {"version": version}
        given: dict[str, Any] = {"json": order} if method == "POST" else {"params": {"wait": _WAIT_SECONDS}}
        try:
            answer = await self._client.request(method, f"{self._url}/build", **given, headers=bearer(self._tokens))
        except httpx.HTTPError as failed:
            raise BuilderUnreachable(
                f"the builder at {self._url} does not answer ({type(failed).__name__}); versions are built when it does"
            ) from failed
        try:
            if answer.status_code == 409:
                # The builder still works on an order from before the restart of cube-transfer.
                return BuildProgress(version=version, stage="failed", error=str(answer.json()["error"]))
            answer.raise_for_status()
            self.progress = BuildProgress.model_validate_json(answer.content)
        except (httpx.HTTPStatusError, ValidationError, ValueError, KeyError) as wrong:
            raise BuilderUnreachable(
                f"the builder at {self._url} answered {answer.status_code}: {answer.text[:200]}; do both have one internal token?"
            ) from wrong
        return self.progress
