"""A store behind HTTP: the file-server, an nginx with WebDAV and JSON listings (charts/elastic-ctr/files/nginx.conf)."""

import json
import os
import socket
import ssl
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any, BinaryIO
from urllib.parse import quote, unquote, urlsplit

import httpx

from elastic_ctr.store.backends.backend import (
    AlreadyPublished,
    Body,
    Credentials,
    NotInStore,
    Stat,
    StoreError,
    StoreUnavailable,
    cause_of,
    checked_name,
)
from elastic_ctr.store.backends.renaming import RenamingBackend

_SENT_AT_ONCE = 1 << 20
# The read timeout covers the deletion of a folder with many files and the flush of a body to a slow disk, not a whole transfer.
_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
# Temporary states of the server or of a proxy. 501 and 505 come from a server that is not our file-server.
_PASSING = {408, 425, 429, *range(500, 600)} - {501, 505}
_CHANGES = {"PUT", "MOVE", "DELETE"}


class WebDav(RenamingBackend):
    """The client of nginx's ngx_http_dav_module and autoindex. Thread-safe.

    The first token is sent only with requests that change something.
    """

    def __init__(self, url: str, tokens: Credentials | None) -> None:
        parts = urlsplit(url)
        if parts.username is not None or parts.query or parts.fragment:
            raise StoreError(
                "store.config.url has more than scheme, host, port and folder; a token belongs into the file that auth.internalFile names"
            )
        self.url = url.rstrip("/")
        self._folder = quote(unquote(parts.path.rstrip("/")))
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._tokens = tokens
        self._was_changed = False
        # Proxies of the environment are ignored: requests stay between pods. Compression is off, because it would change
        # content-length.
        self._client = httpx.Client(
            timeout=_TIMEOUT,
            trust_env=False,
            verify=ssl.create_default_context() if parts.scheme == "https" else True,
            headers={"accept-encoding": "identity", "user-agent": "elastic-ctr"},
        )

    def close(self) -> None:
        self._client.close()

    def stat(self, path: str, deed: str = "looked up in") -> Stat:
        if not path:
            return Stat(0, 0.0, folder=True)
        with self._asked("HEAD", path, deed) as answer:
            if not self._is_folder(answer, path):
                return self._stat_of(answer, path)
        # nginx reports a folder's time only in the listing of its parent.
        above, _, name = path.rpartition("/")
        for each, stat in self.list(above):
            if each == name:
                return stat
        raise NotInStore(f"{path} is not in {self.url}")

    def list(self, folder: str) -> list[tuple[str, Stat]]:
        with self._asked("GET", folder, "listed in", slash=True) as answer:
            text = answer.read().decode("utf-8", "surrogateescape")
        try:
            return [
                (
                    checked_name(each["name"], folder, self.url),
                    Stat(int(each.get("size", 0)), _time_of(each["mtime"]), folder=each["type"] == "directory"),
                )
                for each in _entries(text)
            ]
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as garbled:
            raise StoreError(
                f"{folder or '/'} cannot be listed in {self.url}: the answer is not a JSON listing; it needs nginx with "
                "`autoindex_format json`, as charts/elastic-ctr/files/nginx.conf has it"
            ) from garbled

    @contextmanager
    def read(self, path: str, start: int) -> Iterator[Body]:
        headers = {"range": f"bytes={start}-"} if start else {}
        with self._asked("GET", path, "read from", headers=headers, also={416}) as answer:
            if self._is_folder(answer, path):
                raise StoreError(f"{path} cannot be read from {self.url}: it is a folder")
            if answer.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                # The read starts at or past the end, so there are no bytes.
                size = self._range_of(answer, path)[1]
                if size > start:
                    raise StoreError(f"{path} cannot be read from {self.url}: it has {size} bytes and refuses {start}")
                yield Body(self.stat(path), size, iter(()))
                return
            if answer.status_code == HTTPStatus.PARTIAL_CONTENT:
                first, size = self._range_of(answer, path)
                yield Body(self._stat_of(answer, path, size), first, answer.iter_raw())
            else:
                yield Body(self._stat_of(answer, path), 0, answer.iter_raw())

    def put(self, content: bytes | BinaryIO, path: str, target: str) -> None:
        length = len(content) if isinstance(content, bytes) else os.fstat(content.fileno()).st_size
        blocks = content if isinstance(content, bytes) else iter(lambda: content.read(_SENT_AT_ONCE), b"")
        headers = {"content-length": str(length)}
        with self._asked("PUT", path, "written to", headers=headers, content=blocks, names=target):
            pass

    def move(self, source: str, target: str, *, overwrite: bool) -> None:
        headers = {"destination": self._path(target), "overwrite": "T" if overwrite else "F"}
        with self._asked("MOVE", source, "written to", headers=headers, names=target, also={412}) as answer:
            if answer.status_code == HTTPStatus.PRECONDITION_FAILED:
                raise AlreadyPublished(f"{target} is already published in {self.url}")

    def delete(self, path: str) -> None:
        # The path may be absent: another process may delete it too, or this is a retry.
        with suppress(NotInStore):
            with self._asked("DELETE", path, "deleted from", also={409}) as answer:
                is_folder = answer.status_code == HTTPStatus.CONFLICT
            if is_folder:
                with self._asked("DELETE", path, "deleted from", slash=True):
                    pass

    def _path(self, path: str) -> str:
        # Bytes of names that are not UTF-8 are surrogates in `list`; the request needs the original bytes.
        return f"{self._folder}/{quote(path, errors='surrogateescape')}"

    @contextmanager
    def _asked(
        self,
        method: str,
        path: str,
        deed: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | Iterator[bytes] | None = None,
        slash: bool = False,
        names: str | None = None,
        also: AbstractSet[int] = frozenset(),
    ) -> Iterator[httpx.Response]:
        """Send one request. Raises NotInStore, StoreUnavailable, StoreError unless it succeeds, redirects, or its status is in `also`."""
        cannot = f"{names or path or '/'} cannot be {deed} {self.url}"
        url = f"{self._origin}{self._path(path)}{'/' if slash and path else ''}"
        token = self._tokens.header() if self._tokens and method in _CHANGES else {}
        try:
            with self._client.stream(method, url, headers={**token, **(headers or {})}, content=content) as answer:
                allowed = answer.is_success or (answer.is_redirect and method in {"GET", "HEAD"})
                if not allowed and answer.status_code not in also:
                    raise self._refusal(answer, cannot, names or path)
                if method != "GET":
                    answer.read()  # else the connection cannot be reused
                self._was_changed = self._was_changed or (method in _CHANGES and allowed)
                yield answer
        except httpx.LocalProtocolError as changed:
            raise StoreError(f"{cannot}: it was changed while it was sent ({changed})") from changed
        except httpx.TransportError as broken:
            raise self._unheard(broken, cannot) from broken
        except httpx.InvalidURL as wrong:
            raise StoreError(f"{cannot}: {wrong}; give store.config.url as http://file-server:8080") from wrong

    def _refusal(self, answer: httpx.Response, cannot: str, path: str) -> StoreError:
        status = answer.status_code
        said = f"{status} {answer.reason_phrase}".strip()
        if status == HTTPStatus.NOT_FOUND and answer.request.method != "PUT":
            return NotInStore(f"{path} is not in {self.url}")
        if status == HTTPStatus.FORBIDDEN and self._was_changed:
            return StoreUnavailable(
                f"{cannot}: it forbids what it did before ({said}); may it still write to its folder?"
            )
        if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            wrong = "our token is not the right one" if self._tokens else "no token is set"
            return StoreError(
                f"{cannot}: {wrong} ({said}); let auth.internalFile name a file whose first token is one of the file-server's"
            )
        if status == HTTPStatus.INSUFFICIENT_STORAGE:
            return StoreUnavailable(f"{cannot}: its disk is full ({said}); make room, or give it a larger volume")
        if status in _PASSING:
            full = (
                "; its disk may be full or read-only: its log says"
                if status == HTTPStatus.INTERNAL_SERVER_ERROR
                else ""
            )
            after = answer.headers.get("retry-after", "")
            return StoreUnavailable(f"{cannot}: it answers {said}{full}", float(after) if after.isdigit() else None)
        if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
            return StoreError(f"{cannot}: it is too large ({said}); raise client_max_body_size there")
        return StoreError(
            f"{cannot}: it answers {said}; is store.config.url right, and an nginx with WebDAV there as "
            "charts/elastic-ctr/files/nginx.conf has it?"
        )

    def _unheard(self, broken: httpx.TransportError, cannot: str) -> StoreError:
        host = urlsplit(self._origin).hostname
        unknown = cause_of(broken, socket.gaierror)
        if unknown is not None and unknown.errno != socket.EAI_AGAIN:
            return StoreError(f"{cannot}: no host {host} is known here; is store.config.url right?")
        untrusted = cause_of(broken, ssl.SSLCertVerificationError)
        if untrusted is not None:
            return StoreError(f"{cannot}: {untrusted.verify_message}; SSL_CERT_FILE names the CAs that are trusted")
        if isinstance(broken, httpx.ConnectError | httpx.ConnectTimeout):
            words = str(broken) or "timed out"
            return StoreUnavailable(
                f"{cannot}: it does not answer ({words}); is it running, and is store.config.url right?"
            )
        words = "timed out" if isinstance(broken, httpx.TimeoutException) else "the connection broke"
        return StoreUnavailable(f"{cannot}: {words}; is it running?")

    def _is_folder(self, answer: httpx.Response, path: str) -> bool:
        """True if nginx redirects to the same path with a slash, as it does for a folder. Raises StoreError for any other redirect."""
        if not answer.is_redirect:
            return False
        to = answer.headers["location"]
        if unquote(urlsplit(to).path) == unquote(self._path(path)) + "/":
            return True
        raise StoreError(
            f"{path} cannot be looked up in {self.url}: it sends us to {to[:200]}; is store.config.url right?"
        )

    def _stat_of(self, answer: httpx.Response, path: str, size: int | None = None) -> Stat:
        length = answer.headers.get("content-length", "")
        if size is None and not length.isdigit():
            raise StoreError(f"{path} cannot be read from {self.url}: the answer has no length; is it our file-server?")
        modified = answer.headers.get("last-modified")
        return Stat(
            int(length) if size is None else size,
            _time_of(modified) if modified else 0.0,
            identity=answer.headers.get("etag", modified or ""),
        )

    def _range_of(self, answer: httpx.Response, path: str) -> tuple[int, int]:
        """Return the first byte and the size of the whole file from `bytes 5-9/10` or `bytes */10`."""
        given = answer.headers.get("content-range", "")
        span, _, size = given.removeprefix("bytes ").partition("/")
        first = span.partition("-")[0].replace("*", "0")
        if not (given.startswith("bytes ") and first.isdigit() and size.isdigit()):
            raise StoreError(f"{path} cannot be read from {self.url}: content-range {given[:80]!r} is not understood")
        return int(first), int(size)


def _entries(text: str) -> list[Any]:
    """Return the entries of a JSON listing. Raises ValueError."""
    found = json.loads(text)
    if not isinstance(found, list):
        raise ValueError("no list")  # noqa: TRY004 (the text is at fault)
    return found


def _time_of(text: str) -> float:
    """Return the Unix seconds of an HTTP date. Raises ValueError."""
    return parsedate_to_datetime(text).timestamp()
