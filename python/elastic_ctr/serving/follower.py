"""Transfer as serving sees it: the release document, followed by long poll, and our reports."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import httpx
from pydantic import ValidationError

from elastic_ctr.cube.release import ReaderReport, ReleaseDocument
from elastic_ctr.runtime.http import bearer

log = logging.getLogger(__name__)

# Short: what asks a transfer that was lost without a word hears nothing for so long.
WAIT_SECONDS = 5.0
_SLACK_SECONDS = 3.0
_TIMEOUT = httpx.Timeout(5.0, connect=2.0, read=WAIT_SECONDS + _SLACK_SECONDS)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 2.0


class Follower:
    """Keeps `document` the newest one known. Transfer may be gone for as long as it likes.

    `on_document` is called for every document that is newer; those of a lower generation or revision are ignored.
    """

    def __init__(self, url: str, token: str | None, on_document: Callable[[ReleaseDocument], None]) -> None:
        self.url = url.rstrip("/")
        self.document: ReleaseDocument | None = None
        self.error: str | None = None
        self._on_document = on_document
        self._client = httpx.AsyncClient(headers=bearer(token), timeout=_TIMEOUT, trust_env=False)

    async def run(self) -> None:
        """Follow until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            heard = await self._follow()
            pause = _FIRST_PAUSE if heard else min(2 * pause, _LONGEST_PAUSE)
            await asyncio.sleep(pause)

    async def _follow(self) -> bool:
        """Poll until transfer fails; whether it had said something before."""
        heard = False
        seen: ReleaseDocument | None = None
        try:
            while True:
                # Without `after` first, and after every silence: a transfer that began again counts from elsewhere.
                seen = await self._get({} if seen is None else _newer_than(seen))
                heard = True
                self._spoken()
                if seen is not None:
                    self._take(seen)
        except (httpx.HTTPError, ValidationError, ValueError) as failed:
            self._trouble(failed)
            return heard

    async def refresh(self) -> None:
        """Look at once; on trouble what is known stays."""
        try:
            document = await self._get({})
            if document is not None:
                self._take(document)
        except (httpx.HTTPError, ValidationError, ValueError) as failed:
            self._trouble(failed)

    async def report(self, report: ReaderReport) -> None:
        try:
            answer = await self._client.post(f"{self.url}/readers", content=report.to_json(), timeout=5.0)
            if answer.is_error:
                log.warning(
                    "transfer at %s did not take the report: %d %s", self.url, answer.status_code, answer.text[:200]
                )
        except httpx.HTTPError as failed:
            log.debug("the report did not reach transfer at %s: %r", self.url, failed)

    async def close(self) -> None:
        await self._client.aclose()

    async def _get(self, query: dict[str, float]) -> ReleaseDocument | None:
        """None when there is nothing newer yet."""
        answer = await self._client.get(f"{self.url}/release", params=query)
        if answer.status_code == httpx.codes.NOT_MODIFIED:
            return None
        answer.raise_for_status()
        return ReleaseDocument.model_validate_json(answer.content)

    def _take(self, document: ReleaseDocument) -> bool:
        if not document.is_newer_than(self.document):
            return False
        self.document = document
        self._on_document(document)
        return True

    def _trouble(self, failed: Exception) -> None:
        if self.error is None:
            log.warning("transfer at %s does not give a release document: %r; what is known stays", self.url, failed)
        self.error = f"transfer at {self.url} does not answer ({type(failed).__name__})"

    def _spoken(self) -> None:
        if self.error is not None:
            log.info("transfer at %s answers again", self.url)
        self.error = None


def _newer_than(seen: ReleaseDocument) -> dict[str, float]:
    return {"generation": seen.generation, "after": seen.revision, "wait": WAIT_SECONDS}
