"""Stores of published files: one small interface, and one implementation for each kind of address."""

from elastic_ctr.store.backends.address import open_source, open_store
from elastic_ctr.store.backends.backend import AlreadyPublished, FileTooLarge, NotInStore, StoreError, StoreUnavailable
from elastic_ctr.store.backends.file import FileStore
from elastic_ctr.store.backends.retry import RetryPolicy
from elastic_ctr.store.backends.store import Store

__all__ = [
    "AlreadyPublished",
    "FileStore",
    "FileTooLarge",
    "NotInStore",
    "RetryPolicy",
    "Store",
    "StoreError",
    "StoreUnavailable",
    "open_source",
    "open_store",
]
