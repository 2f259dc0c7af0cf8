"""Addresses of stores and sources: opens what is at an address, and compares addresses, both without a request to it."""

import posixpath
from pathlib import Path, PurePosixPath
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from elastic_ctr.store.backends.backend import Credentials, StoreError
from elastic_ctr.store.backends.file import FileStore
from elastic_ctr.store.backends.retry import RetryPolicy
from elastic_ctr.store.backends.source import FileSource, Source
from elastic_ctr.store.backends.store import Store

C = TypeVar("C", bound=Credentials)
_PORTS = {"http": 80, "https": 443}


def lies_in(url: str, tree: str) -> bool:
    """True if `url` is the folder `tree` or lies below it. Two names of one host are different. Raises ValueError for an invalid port."""
    host, path = _split(url)
    tree_host, tree_path = _split(tree)
    return host == tree_host and path.is_relative_to(tree_path)


def tokens_for(url: str, store: str, tokens: C | None) -> C | None:
    """Return `tokens` if `url` lies in the release's own `store`, else None: no other server receives them."""
    return tokens if lies_in(url, store) else None


def _split(url: str) -> tuple[tuple[str, str | None, int | None], PurePosixPath]:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.scheme == "file":
        return ("file", None, None), PurePosixPath(Path(path).resolve())
    # hdfs:// and webhdfs:// have different ports for the same file system.
    if parts.scheme in {"hdfs", "webhdfs"}:
        host: tuple[str, str | None, int | None] = ("hdfs", parts.hostname, None)
    else:
        host = (parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme))
    return host, PurePosixPath(posixpath.normpath(f"/{path.lstrip('/')}"))


def open_store(
    url: str, *, tokens: Credentials | None = None, user: str = "root", retry: RetryPolicy | None = None
) -> Store:
    """Return the store at an address. The tokens are for http, the user for HDFS.

    Raises StoreError for an address of another form.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return FileStore(Path(unquote(parts.path)))
    if parts.scheme in {"http", "https"} and parts.netloc:
        from elastic_ctr.store.backends.webdav import WebDav

        return Store(WebDav(url, tokens), retry)
    if parts.scheme in {"hdfs", "webhdfs"}:
        from elastic_ctr.store.backends.hdfs import WebHdfs

        return Store(WebHdfs(url, user, "store.config"), retry)
    raise StoreError(
        f"store.config.url {url!r} is not understood; give file:///a/folder, http://file-server:8080 or "
        "hdfs://namenode:9000/a/folder"
    )


def open_source(url: str, user: str, retry: RetryPolicy | None = None) -> Source:
    """Return the source at an address. The user is for HDFS.

    Raises StoreError for an address of another form.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/") and not parts.query:
        return FileSource(Path(unquote(parts.path)))
    if parts.scheme in {"hdfs", "webhdfs"}:
        from elastic_ctr.store.backends.hdfs import WebHdfs

        return Source(WebHdfs(url, user, "data.source"), retry)
    if parts.scheme in {"kafka", "intake"} or parts.query == "follow":
        raise StoreError(
            f"{url} is a stream and has no hours; give the address of a folder of hours, as file:///a/folder"
        )
    raise StoreError(
        f"data.source.url {url!r} is not understood; give file:///a/folder or hdfs://namenode:9000/a/folder"
    )
