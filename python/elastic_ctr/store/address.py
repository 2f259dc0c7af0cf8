"""Comparison of the addresses of stores and sources, without any request."""

import posixpath
from pathlib import Path, PurePosixPath
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from elastic_ctr.store.interface import Credentials

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
