"""Addresses of stores and sources: opens what is at an address, and compares addresses, both without a request to it."""

import posixpath
from pathlib import Path, PurePosixPath
from typing import Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from elastic_ctr.store.backends.backend import Backend, BucketAccess, Credentials, StoreError
from elastic_ctr.store.backends.file import FileStore
from elastic_ctr.store.backends.retry import RetryPolicy
from elastic_ctr.store.backends.source import AddressedFiles, FileSource, Source
from elastic_ctr.store.backends.store import Store

C = TypeVar("C", bound=Credentials)
# Before the address of a Delta table's folder.
_DELTA = "delta+"
_PORTS = {"http": 80, "https": 443}
_BUCKETS = frozenset({"s3", "gs", "az"})
_HDFS = frozenset({"hdfs", "webhdfs", "swebhdfs"})


class Location(Protocol):
    """Where a store or source is, and what its kind of address needs. `user` and `keytab` are for HDFS."""

    @property
    def url(self) -> str: ...

    @property
    def user(self) -> str: ...

    @property
    def keytab(self) -> str | None: ...

    @property
    def bucket(self) -> BucketAccess: ...

    def moved(self, url: str) -> "Location": ...


def lies_in(place: Location, tree: Location) -> bool:
    """True if `place` is the folder `tree` or lies below it. Two names of one host are different. Raises ValueError for an invalid port."""
    host, path = _split(place)
    tree_host, tree_path = _split(tree)
    return host == tree_host and path.is_relative_to(tree_path)


def tokens_for(place: Location, store: Location, tokens: C | None) -> C | None:
    """Return `tokens` if `place` lies in the release's own `store`, else None: no other server receives them."""
    return tokens if lies_in(place, store) else None


def _split(place: Location) -> tuple[tuple[str | None, ...], PurePosixPath]:
    parts = urlsplit(place.url.removeprefix(_DELTA))
    path = unquote(parts.path)
    if parts.scheme == "file":
        return ("file",), PurePosixPath(Path(path).resolve())
    # hdfs://, webhdfs:// and swebhdfs:// have different ports for the same file system.
    if parts.scheme in _HDFS:
        host: tuple[str | None, ...] = ("hdfs", parts.hostname)
    elif parts.scheme in _BUCKETS:
        # Two endpoints may each have a bucket of this name.
        host = (parts.scheme, parts.netloc, place.bucket.endpoint)
    else:
        host = (parts.scheme, parts.hostname, str(parts.port or _PORTS.get(parts.scheme)))
    return host, PurePosixPath(posixpath.normpath(f"/{path.lstrip('/')}"))


def open_store(
    at: Location, *, tokens: Credentials | None = None, retry: RetryPolicy | None = None, setting: str = "store.config"
) -> Store:
    """Return the store at a location. The tokens are for http, and messages name the `setting`.

    Raises StoreError for an address of another form.
    """
    parts = urlsplit(at.url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return FileStore(Path(unquote(parts.path)))
    if parts.scheme in {"http", "https"} and parts.netloc:
        from elastic_ctr.store.backends.webdav import WebDav

        return Store(WebDav(at.url, tokens), retry)
    if (backend := _hdfs_or_bucket(at, setting)) is not None:
        return Store(backend, retry)
    raise StoreError(
        f"store.config.url {at.url!r} is not understood; give file:///a/folder, http://file-server:8080, "
        "hdfs://namenode:9000/a/folder or s3://bucket/a/folder"
    )


def open_source(at: Location, retry: RetryPolicy | None = None) -> Source:
    """Return the source at a location.

    Raises StoreError for an address of another form.
    """
    parts = urlsplit(at.url.removeprefix(_DELTA))
    if parts.scheme in {"iceberg", "iceberg+rest"}:
        return AddressedFiles(at.url, lambda url: open_source(at.moved(url), retry))
    if parts.scheme in {"kafka", "intake"} or parts.query == "follow":
        raise StoreError(
            f"{at.url} is a stream and has no hours; give the address of a folder of hours, as file:///a/folder"
        )
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/") and not parts.query:
        return FileSource(Path(unquote(parts.path)))
    if (backend := _hdfs_or_bucket(at.moved(at.url.removeprefix(_DELTA)), "data.source")) is not None:
        return Source(backend, retry)
    raise StoreError(
        f"data.source.url {at.url!r} is not understood; give file:///a/folder, hdfs://namenode:9000/a/folder or s3://bucket/a/folder"
    )


def _hdfs_or_bucket(at: Location, setting: str) -> Backend | None:
    """Return the backend, whose messages name `setting`; None for an address of another form. Raises StoreError."""
    parts = urlsplit(at.url)
    if parts.scheme in _HDFS:
        from elastic_ctr.store.backends.hdfs import WebHdfs

        return WebHdfs(at.url, at.user, setting, at.keytab)
    if parts.scheme in _BUCKETS and parts.netloc and not parts.query:
        from elastic_ctr.store.backends.object_store import ObjectStore

        return ObjectStore(at.url, at.bucket, setting)
    return None
