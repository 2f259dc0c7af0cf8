"""The log of an intake, read over HTTP."""

import io
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

import httpx
import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, Field

from elastic_ctr.runtime.auth import Tokens, bearer
from elastic_ctr.runtime.documents import DocumentDamaged, read_document
from elastic_ctr.sources.streams.interface import Kept, Lines, Stream, TopicBefore
from elastic_ctr.store.backends import NotInStore, RetryPolicy, StoreError, StoreUnavailable
from elastic_ctr.store.backends.backend import cause_of

# Short, because the master's loop waits for the answer.
_LOOK_TIMEOUT = httpx.Timeout(2.0)
_READ_TIMEOUT = httpx.Timeout(10.0)
# Far above the longest answer: 4 MiB, exceeded by at most one batch, which is 4 MiB or one long line.
_MOST_BYTES = 128 << 20
_PASSING = {408, 425, 429, 500, 502, 503, 504}
_MOST_OF_A_REFUSAL = 4096
_NEWLINE = 10


class _Topic(BaseModel):
    url: str
    lag: int | None
    error: str | None


class _Places(BaseModel):
    partition: str = Field(min_length=1, max_length=255)
    first: int = Field(ge=0, lt=2**63)
    end: int = Field(ge=0, lt=2**63)
    topic: _Topic | None = None


class _Refusal(BaseModel):
    error: str = Field(max_length=2000)


class IntakeLog(Stream):
    """A stream of one partition whose offsets count lines. A new log has a partition of another name."""

    unit = "records"

    def __init__(
        self, netloc: str, retry: RetryPolicy | None = None, tokens: Tokens | None = None, *, own: bool = False
    ) -> None:
        """`tokens` are the internal tokens of the intake's release. `own`: the reader belongs to the same release."""
        self.url = f"intake://{netloc}"
        self._origin = f"http://{netloc}"
        self._retry = retry or RetryPolicy()
        self._tokens = tokens
        self._own = own
        # Proxies of the environment are ignored: requests stay between pods.
        self._client = httpx.Client(
            trust_env=False, headers={"accept-encoding": "identity", "user-agent": "elastic-ctr"}
        )

    def partitions(self) -> dict[str, Kept]:
        with self._asked("GET", "/v1/log", _LOOK_TIMEOUT) as answer:
            text = self._body(answer)
        try:
            places = read_document(_Places, text)
        except DocumentDamaged as wrong:
            raise self._no_intake(str(wrong)) from wrong
        topic = places.topic
        self.topic_before = None if topic is None else TopicBefore(topic.url, topic.lag, topic.error)
        return {places.partition: Kept(places.first, places.end)}

    def keep_from(self, needed: Mapping[str, int], following: Mapping[str, int]) -> None:
        """Report the positions of training to the release's own intake, which stops reading its topic while training is behind."""
        if self._own:
            told = {"needed": dict(needed), "following": dict(following)}
            with self._asked("POST", "/v1/log/needed", _LOOK_TIMEOUT, json=told) as answer:
                self._body(answer)

    def read(self, partition: str, start: int, stop: int, most_bytes: int | None = None) -> Lines:
        texts, offsets, following, size = list[bytes](), [np.zeros(0, np.int64)], start, 0
        while following < stop and (most_bytes is None or size < most_bytes):
            first, following, text = self._retry.call(partial(self._piece, partition, following, stop))
            texts.append(text)
            size += len(text)
            # Retention may drop offsets between two pieces.
            offsets.append(np.arange(first, following, dtype=np.int64))
        return _lines(b"".join(texts), np.concatenate(offsets), start, following)

    def _piece(self, partition: str, start: int, stop: int) -> tuple[int, int, bytes]:
        """Return the first offset, `start` or later, the offset after the last line, and the lines."""
        with self._asked("GET", "/v1/log/lines", _READ_TIMEOUT, params={"start": start, "stop": stop}) as answer:
            self._check_partition(partition, answer.headers.get("log-partition", ""))
            if answer.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise StoreError(
                    f"{partition} of {self.url} ends at offset {answer.headers.get('log-end', '?')[:20]} where {stop} had been "
                    "seen: an older copy of the log was put back"
                )
            text = self._body(answer)
            first, following = (answer.headers.get(name, "") for name in ("first-offset", "next-offset"))
        if not (first.isdigit() and following.isdigit() and len(first) < 20 and len(following) < 20):
            raise self._no_intake("it names no offsets")
        begin, end = int(first), int(following)
        if not start <= begin <= end <= stop or end == start or text.count(_NEWLINE) != end - begin:
            raise StoreError(
                f"{partition} of {self.url} cannot be read: {text.count(_NEWLINE)} lines came for the offsets {begin} to {end}, "
                f"and {start} to {stop} were asked for; is another program between?"
            )
        return begin, end, text

    def _check_partition(self, wanted: str, found: str) -> None:
        if not found:
            raise self._no_intake("it names no partition")
        if found != wanted:
            raise NotInStore(
                f"{wanted} is not in {self.url}, whose log is {found[:255]}: it was begun anew, and the clicks of {wanted} are lost; put the "
                "former log back, or begin another model"
            )

    def _body(self, answer: httpx.Response) -> bytes:
        found = bytearray()
        for block in answer.iter_raw():
            found += block
            if len(found) > _MOST_BYTES:
                raise self._no_intake(f"its answer has more than {_MOST_BYTES} bytes")
        return bytes(found)

    @contextmanager
    def _asked(self, method: str, path: str, timeout: httpx.Timeout, **given: Any) -> Iterator[httpx.Response]:
        try:
            with self._client.stream(
                method, f"{self._origin}{path}", timeout=timeout, headers=bearer(self._tokens), **given
            ) as answer:
                status = answer.status_code
                if status in _PASSING:
                    raise StoreUnavailable(f"{self.url} does not answer: it says {_said(answer)}")
                if status == HTTPStatus.UNAUTHORIZED:
                    raise StoreUnavailable(
                        f"{self.url} does not take the internal token of its readers; give them a token file of its release"
                    )
                if status == HTTPStatus.NOT_FOUND:
                    raise NotInStore(f"{self.url}: what answers has no log of clicks (404); mend data.source.url")
                if status not in {HTTPStatus.OK, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE}:
                    raise self._no_intake(f"it answers {status} {answer.reason_phrase}".strip())
                yield answer
        except httpx.InvalidURL as wrong:
            raise StoreError(
                f"{self.url} is no address: {wrong}; give data.source.url as intake://host:8310"
            ) from wrong
        except (httpx.TransportError, httpx.StreamError) as broken:
            unknown = cause_of(broken, socket.gaierror)
            if unknown is not None and unknown.errno != socket.EAI_AGAIN:
                raise StoreError(f"{self.url}: no such host is known here; is data.source.url right?") from broken
            words = "timed out" if isinstance(broken, httpx.TimeoutException) else str(broken) or "the connection broke"
            raise StoreUnavailable(f"{self.url} does not answer: {words}; is the intake running?") from broken

    def _no_intake(self, why: str) -> StoreError:
        return StoreError(f"{self.url}: what answers is no intake ({why}); is data.source.url right?")

    def close(self) -> None:
        self._client.close()


def _said(answer: httpx.Response) -> str:
    """Return the status of an error answer with the intake's message."""
    status = f"{answer.status_code} {answer.reason_phrase}".strip()
    found = next(answer.iter_raw(_MOST_OF_A_REFUSAL), b"")
    try:
        return f"{status}: {read_document(_Refusal, found).error}"
    except DocumentDamaged:
        return status


def _lines(raw: bytes, offsets: npt.NDArray[np.int64], start: int, following: int) -> Lines:
    """Return lines and their offsets for the range from `start` up to `following`, exclusive, of which the log may have dropped some."""
    messages = np.zeros((len(offsets), 2), np.int64)
    messages[:, 0] = offsets
    messages[1:, 1] = np.flatnonzero(np.frombuffer(raw, np.uint8) == _NEWLINE)[:-1] + 1
    return Lines(io.BytesIO(raw), 0, None, following - start - len(offsets), messages, following)
