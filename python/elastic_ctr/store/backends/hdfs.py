"""HDFS through WebHDFS, as a store of published files and as a source of click logs.

Requests for `hdfs://namenode:9000/folder` go to http://namenode:9870, for `webhdfs://namenode:PORT/folder` to that port, for
`swebhdfs://namenode:PORT/folder` there over TLS, and for a pair, `hdfs://nn1:9000,nn2:9000/folder`, to the active NameNode.
DataNodes must be reachable by the names that the NameNode returns.

With a keytab a NameNode gets a Kerberos ticket, and then its own cookie. A transfer of blocks has a delegation token in its address.
The client requests one an hour: without it the NameNode would make one for each transfer, and keep each for a day.
"""

import logging
import os
import re
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import requests
import urllib3
from hdfs import Client, HdfsError

from elastic_ctr.store.backends.backend import (
    AlreadyPublished,
    Body,
    NotInStore,
    Stat,
    StoreError,
    StoreUnavailable,
    cause_of,
    checked_name,
)
from elastic_ctr.store.backends.kerberos import KerberosRefusal, Keytab
from elastic_ctr.store.backends.renaming import RenamingBackend

# Bytes of one block of an answer; a retry requests an incomplete block again.
_BLOCK = 1 << 16
_WEB_PORTS = {"http": 9870, "https": 9871}
_TOKEN_SECONDS = 3600
_WITH_TOKEN = {"OPEN", "CREATE"}
_DATANODES = "datanodes"
_WRITTEN = "written to"
_PASSING = {429, 502, 503, 504}
_TIMEOUT = (5.0, 60.0)
# The connect timeout, the first number, also limits each send of a body, and a pipeline of DataNodes may stall for 5 s.
_SEND_TIMEOUT = (20.0, 60.0)
_ADDRESS = re.compile(r"^(hdfs|webhdfs|swebhdfs)://([^/?#@]+)(/[^?#]*)?$")
_HOST = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[^:\[\]\s]+)(?::(\d{1,5}))?$")
# The package logs each call, and errors that this module raises with their reason.
logging.getLogger("hdfs.client").setLevel(logging.CRITICAL)
# It logs the addresses of requests, in which there are tokens, at DEBUG.
logging.getLogger("urllib3").setLevel(logging.INFO)

# Exceptions of Hadoop for which a retry does not help.
_FINAL = {
    "AccessControlException",
    "IllegalArgumentException",
    "InvalidPathException",
    "ParentNotDirectoryException",
    "SecurityException",
    "UnsupportedOperationException",
}


def address_of(url: str) -> tuple[tuple[str, ...], str]:
    """Return the WebHDFS endpoints, one of which is the active NameNode, and the folder ("" is the root).

    Raises ValueError with the accepted forms.
    """
    match = _ADDRESS.match(url)
    hosts = [] if match is None else [_HOST.match(host) for host in match[2].split(",")]
    if match is None or None in hosts:
        raise ValueError(
            "give hdfs://namenode:9000, webhdfs://namenode:9870, swebhdfs://namenode:9871, or both of a pair as "
            "hdfs://nn1:9000,nn2:9000; a folder may follow"
        )
    rpc = match[1] == "hdfs"
    web = "https" if match[1] == "swebhdfs" else "http"
    endpoints = tuple(
        f"{web}://{host[1]}:{_WEB_PORTS[web] if rpc or not host[2] else host[2]}" for host in hosts if host
    )
    folder = unquote(match[3] or "").rstrip("/")
    if ".." in folder.split("/"):
        raise ValueError("the folder is to be written without '..'")
    return endpoints, folder


def _endpoint_of(url: str) -> str:
    return "{0.scheme}://{0.netloc}".format(urlsplit(url))


class _Client(Client):  # type: ignore[misc]
    """The package's client, with a session for each NameNode and one for DataNodes: no DataNode gets a cookie or a ticket."""

    def __init__(self, endpoints: tuple[str, ...], user: str, keytab: Keytab | None) -> None:
        # The NameNode's cookie fixes the user, whatever `user.name` later requests have.
        self._sessions = {endpoint: requests.Session() for endpoint in (*endpoints, _DATANODES)}
        for session in self._sessions.values():
            session.trust_env = False
            session.verify = os.environ.get("SSL_CERT_FILE") or True
            session.headers.update({"content-type": "application/octet-stream", "accept-encoding": "identity"})
        self._user = {} if keytab else {"user.name": user}
        self._keytab = keytab
        self._token, self._token_ends = "", 0.0
        super().__init__(";".join(endpoints))

    def close(self) -> None:
        for session in self._sessions.values():
            session.close()

    def forget_token(self) -> None:
        """Let the next transfer request another delegation token."""
        self._token_ends = 0.0

    def resolve(self, hdfs_path: str) -> str:
        return hdfs_path  # the package would look up a `#LATEST` in a name

    def move(self, source: str, target: str, options: str) -> requests.Response:
        """Rename with options, which the package lacks. Without them HDFS moves the source into a target that is a folder."""
        return self._rename(source, destination=target, renameoptions=options)  # type: ignore[no-any-return]

    def _request(
        self,
        method: str,
        url: str,
        params: dict[str, str] | None = None,
        data: bytes | BinaryIO | None = None,
        *,
        stream: bool = False,
        allow_redirects: bool = True,
    ) -> requests.Response:
        if params is None:
            return self._send(method, url, None, data)  # to a DataNode
        params = {**params, **self._user}
        if self._keytab is not None and params["op"] in _WITH_TOKEN:
            if time.monotonic() >= self._token_ends:
                answer = self._send("GET", f"{_endpoint_of(url)}/webhdfs/v1/", {"op": "GETDELEGATIONTOKEN"})
                if not answer.ok:
                    return answer
                if (token := answer.json()["Token"]) is None:
                    raise KerberosRefusal(f"{_endpoint_of(url)} works without Kerberos; leave `keytab` out")
                self._token, self._token_ends = token["urlString"], time.monotonic() + _TOKEN_SECONDS
            params["delegation"] = self._token
        answer = self._send(method, url, params, data, stream=stream)
        if answer.is_redirect and allow_redirects:
            _ = answer.content  # returns the connection to the pool
            return self._send(method, answer.headers["location"], stream=stream)
        return answer

    def _send(
        self,
        method: str,
        url: str,
        params: dict[str, str] | None = None,
        data: bytes | BinaryIO | None = None,
        *,
        stream: bool = False,
        ticket: dict[str, str] | None = None,
    ) -> requests.Response:
        endpoint = _endpoint_of(url)
        session = self._sessions.get(endpoint, self._sessions[_DATANODES])
        answer = session.request(
            method,
            url,
            params=params,
            data=data,
            headers=ticket,
            timeout=_TIMEOUT if data is None else _SEND_TIMEOUT,
            allow_redirects=False,
            stream=stream,
        )
        if answer.status_code in _PASSING:
            # A proxy, not Hadoop, sends these statuses. A ConnectionError is retried, also at the other NameNode of a pair.
            raise requests.ConnectionError(f"{answer.status_code} {answer.reason}", request=answer.request)
        if self._keytab is None or endpoint not in self._sessions:
            return answer
        if ticket is None and answer.status_code == 401:
            # The first request, or the cookie has expired.
            _ = answer.content
            session.cookies.clear()
            if data is not None:
                raise requests.ConnectionError("401 after a transfer", request=answer.request)
            ticket = self._keytab.header(urlsplit(url).hostname or "")
            return self._send(method, url, params, stream=stream, ticket=ticket)
        if ticket and answer.status_code in {401, 403} and "json" not in answer.headers.get("content-type", ""):
            raise self._keytab.refused_by(endpoint, f"{answer.status_code} {answer.reason}")
        return answer


class WebHdfs(RenamingBackend):
    """HDFS as one user, which is a Kerberos principal if there is a keytab. `setting` is the section of the settings, for messages."""

    def __init__(self, url: str, user: str, setting: str, keytab: str | None = None) -> None:
        try:
            self._endpoints, self._folder = address_of(url)
        except ValueError as wrong:
            raise StoreError(f"{setting}.url {url!r} is not understood; {wrong}") from wrong
        self._named = " and ".join(self._endpoints)
        self.url = url.rstrip("/")
        self._user = user
        self._setting = setting
        self._client = _Client(self._endpoints, user, None if keytab is None else Keytab(user, keytab, setting))

    def close(self) -> None:
        self._client.close()

    def stat(self, path: str, deed: str = "looked up in") -> Stat:
        with self._asked(path, deed):
            return _stat_of(self._client.status(self._at(path)))

    def list(self, folder: str) -> list[tuple[str, Stat]]:
        with self._asked(folder, "listed in"):
            found = self._client.list(self._at(folder), status=True)
            return [(checked_name(name, folder, self.url), _stat_of(each)) for name, each in found]

    @contextmanager
    def read(self, path: str, start: int) -> Iterator[Body]:
        stat = self.stat(path)
        if stat.folder:
            raise StoreError(f"{path} cannot be read from {self.url}: it is a folder")
        if start >= stat.size:
            # The NameNode would refuse an offset past the end with an error that looks temporary.
            yield Body(stat, stat.size, iter(()))
            return
        with (
            self._asked(path, "read from"),
            self._client.read(self._at(path), offset=start, chunk_size=_BLOCK) as blocks,
        ):
            yield Body(stat, start, blocks)

    def put(self, content: bytes | BinaryIO, path: str, target: str) -> None:
        with self._asked(target, _WRITTEN):
            self._client.write(self._at(path), data=content, overwrite=False)

    def move(self, source: str, target: str, *, overwrite: bool) -> None:
        with self._asked(target, _WRITTEN):
            answer = self._client.move(self._at(source), self._at(target), "OVERWRITE" if overwrite else "NONE")
            # HttpFS ignores the options and answers with a boolean, as the older rename does.
            if answer.content and not answer.json().get("boolean", True):
                self.stat(source)
                raise AlreadyPublished(f"{target} is already published in {self.url}")

    def delete(self, path: str) -> None:
        with self._asked(path, "deleted from"):
            self._client.delete(self._at(path), recursive=True)

    def _at(self, path: str) -> str:
        return f"{self._folder}/{path}"

    @contextmanager
    def _asked(self, path: str, deed: str) -> Iterator[None]:
        cannot = f"{path or '/'} cannot be {deed} {self.url}"
        try:
            yield
        except HdfsError as refused:
            raise self._refusal(refused, cannot, path, writes=deed == _WRITTEN) from refused
        except KerberosRefusal as refused:
            raise (StoreUnavailable if refused.passing else StoreError)(f"{cannot}: {refused}") from refused
        # Tracebacks of the following would show addresses, in which there are tokens.
        except (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError) as broken:
            raise self._unheard(broken, cannot) from None
        except (requests.RequestException, urllib3.exceptions.HTTPError, ValueError, KeyError, TypeError):
            raise StoreError(
                f"{cannot}: what answers at {self._named} does not speak WebHDFS; is {self._setting}.url right?"
            ) from None

    def _refusal(self, refused: HdfsError, cannot: str, path: str, *, writes: bool) -> StoreError:
        said = refused.message
        text = said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)
        # A DataNode adds a stack trace.
        words = (text.strip().splitlines() or ["it does not say why"])[0][:300]
        name = refused.exception
        below_a_file = "is not a directory" in words
        if name == "FileNotFoundException" or (below_a_file and not writes):
            return NotInStore(f"{path} is not in {self.url}")
        if name == "FileAlreadyExistsException":
            return AlreadyPublished(f"{path} is already published in {self.url}")
        if below_a_file:
            return StoreError(f"{cannot}: {words}")
        if "InvalidToken" in f"{name} {words}":
            self._client.forget_token()
            return StoreUnavailable(f"{cannot}: {words}")
        if name in {"AccessControlException", "SecurityException"} or '"user.name"' in words:
            return StoreError(
                f"{cannot} as user {self._user!r} ({words}); set {self._setting}.user to one who may, or let this one in"
            )
        if words.startswith("Authentication failure"):
            return StoreError(
                f"{cannot}: {self._named} wants authentication of {self._user!r} (401); set {self._setting}.user to a Kerberos "
                f"principal and {self._setting}.keytab to a file with its key"
            )
        if name is None:
            return StoreError(
                f"{cannot}: {self._named} answers {words!r}; is {self._setting}.url right, and is WebHDFS on?"
            )
        if name in _FINAL:
            return StoreError(f"{cannot}: {words}")
        # Hadoop has many temporary errors: standby, safe mode, start-up, DataNodes that do not report.
        return StoreUnavailable(f"{cannot}: {words}")

    def _unheard(self, broken: requests.RequestException, cannot: str) -> StoreError:
        asked = broken.request.url if broken.request is not None else None
        endpoint = _endpoint_of(asked) if asked else self._endpoints[-1]
        own = endpoint in self._endpoints
        host = self._named if own else f"the DataNode {endpoint}, where the NameNode sends us,"
        unknown = cause_of(broken, socket.gaierror)
        if unknown is not None and unknown.errno != socket.EAI_AGAIN:
            way_out = (
                f"is {self._setting}.url right?"
                if own
                else "it must have that name here as well (dfs.datanode.hostname, or an entry in the DNS)"
            )
            return StoreError(f"{cannot}: no host {urlsplit(endpoint).hostname} is known here; {way_out}")
        untrusted = cause_of(broken, ssl.SSLCertVerificationError)
        if untrusted is not None:
            return StoreError(
                f"{cannot}: the certificate of {host} is not trusted ({untrusted.verify_message}); SSL_CERT_FILE names the CAs "
                "that are trusted"
            )
        if isinstance(broken, requests.Timeout) or "timed out" in str(broken):
            return StoreUnavailable(f"{cannot}: {host} did not answer in time; is it running?")
        if cause_of(broken, ConnectionRefusedError) is not None:
            return StoreUnavailable(
                f"{cannot}: {host} refuses the connection; is it running, and is {self._setting}.url right?"
            )
        return StoreUnavailable(f"{cannot}: the connection to {host} broke; is it running?")


def _stat_of(status: dict[str, Any]) -> Stat:
    return Stat(
        int(status["length"]),
        int(status["modificationTime"]) / 1000,
        folder=status["type"] == "DIRECTORY",
        identity=f"{status.get('fileId', '')}-{status['modificationTime']}",
    )
