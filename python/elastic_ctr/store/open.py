"""Opens the store or the source of click logs at an address, without a request to it."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from elastic_ctr.store.file import FileStore
from elastic_ctr.store.interface import Credentials, StoreError
from elastic_ctr.store.retry import RetryPolicy
from elastic_ctr.store.source import FileSource, Source
from elastic_ctr.store.store import Store


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
        from elastic_ctr.store.webdav import WebDav

        return Store(WebDav(url, tokens), retry)
    if parts.scheme in {"hdfs", "webhdfs"}:
        from elastic_ctr.store.hdfs import WebHdfs

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
        from elastic_ctr.store.hdfs import WebHdfs

        return Source(WebHdfs(url, user, "data.source"), retry)
    if parts.scheme in {"kafka", "intake"} or parts.query == "follow":
        raise StoreError(
            f"{url} is a stream and has no hours; give the address of a folder of hours, as file:///a/folder"
        )
    raise StoreError(
        f"data.source.url {url!r} is not understood; give file:///a/folder or hdfs://namenode:9000/a/folder"
    )
