"""Stores of published files: one small interface, and one implementation for each kind of address."""

from elastic_ctr.store.address import open_source, open_store
from elastic_ctr.store.backend import AlreadyPublished, FileTooLarge, NotInStore, StoreError, StoreUnavailable
from elastic_ctr.store.file import FileStore
from elastic_ctr.store.retry import RetryPolicy
from elastic_ctr.store.store import Store

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
