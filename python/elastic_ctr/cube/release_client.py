"""The client of cube-transfer in agents and serving: it follows the release document by long poll and sends reports."""

import asyncio
import logging
import time
from collections.abc import Callable

import httpx

from elastic_ctr.cube.release import AgentReport, ReaderReport, ReleaseDocument
from elastic_ctr.runtime.auth import Tokens, bearer
from elastic_ctr.runtime.growing_pause import growing_pause

log = logging.getLogger(__name__)

# Seconds of a long poll. They are few, because it takes a client that long to notice a cube-transfer lost without a reset.
WAIT_SECONDS = 5.0
_TIMEOUT = httpx.Timeout(5.0, connect=2.0, read=WAIT_SECONDS + 3.0)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 2.0


class ReleaseClient:
    """Keeps `document` the newest one known. cube-transfer may be down for any time.

    `on_document` is called for every newer document; one of a lower generation or revision is ignored. `error` and
    `report_error` are the present failures, `answered_at` and `reported_at` (monotonic) the times of the last successes.
    """

    def __init__(self, url: str, tokens: Tokens | None, on_document: Callable[[ReleaseDocument], None]) -> None:
        self.url = url.rstrip("/")
        self.document: ReleaseDocument | None = None
        self.error: str | None = None
        self.report_error: str | None = None
        self.answered_at = self.reported_at = float("-inf")
        self._on_document = on_document
        self._tokens = tokens
        self._client = httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False)

    async def run(self) -> None:
        """Follow until cancelled."""
        failures = 0
        seen: ReleaseDocument | None = None
        while True:
            seen = await self.refresh(seen)
            failures = 0 if self.error is None else failures + 1
            if failures:
                await asyncio.sleep(growing_pause(failures, _FIRST_PAUSE, _LONGEST_PAUSE))

    async def refresh(self, seen: ReleaseDocument | None = None) -> ReleaseDocument | None:
        """Get the document at once, or wait for one that is newer than `seen`. Return the document in the answer: None if
        there is nothing newer yet, or after an error; then the known document stays.
        """
        # Without `after` in the first request and after every error: a cube-transfer that lost its state may count lower.
        query = {} if seen is None else {"generation": seen.generation, "after": seen.revision, "wait": WAIT_SECONDS}
        document = None
        try:
            answer = await self._client.get(f"{self.url}/release", params=query)
            if answer.status_code != httpx.codes.NOT_MODIFIED:
                answer.raise_for_status()
                document = ReleaseDocument.model_validate_json(answer.content)
        except (httpx.HTTPError, ValueError) as failed:
            if self.error is None:
                log.warning(
                    "cube-transfer at %s does not give a release document: %r; the known one stays", self.url, failed
                )
            self.error = f"transfer at {self.url} does not answer ({type(failed).__name__})"
            return None
        if self.error is not None:
            log.info("cube-transfer at %s answers again", self.url)
        self.error = None
        self.answered_at = time.monotonic()
        if document is not None and document.is_newer_than(self.document):
            self.document = document
            self._on_document(document)
        return document

    async def report(self, report: AgentReport | ReaderReport) -> None:
        path = "agents" if isinstance(report, AgentReport) else "readers"
        try:
            answer = await self._client.post(
                f"{self.url}/{path}", content=report.to_json(), timeout=5.0, headers=bearer(self._tokens)
            )
        except httpx.HTTPError as failed:
            log.debug("the report did not reach cube-transfer at %s: %r", self.url, failed)
            return
        before, self.report_error = self.report_error, None
        if answer.is_error:
            self.report_error = f"cube-transfer refused the report: {answer.status_code} {answer.text[:300]}"
            if self.report_error != before:
                log.warning("%s", self.report_error)
        else:
            self.reported_at = time.monotonic()

    async def close(self) -> None:
        await self._client.aclose()
