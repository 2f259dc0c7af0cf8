"""From an address to a store."""

from pathlib import Path
from urllib.parse import unquote, urlsplit

from elastic_ctr.store.file import FileStore
from elastic_ctr.store.interface import Store, StoreError


def open_store(url: str) -> Store:
    """The store behind an address. Raises StoreError for an address that no store here understands."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return FileStore(Path(unquote(parts.path)))
    raise StoreError(f"store.config.url {url!r} is not understood; give file:///a/folder")
