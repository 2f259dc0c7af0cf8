"""Where published files live: one small interface, and one implementation for each kind of address."""

from elastic_ctr.store.file import FileStore
from elastic_ctr.store.interface import AlreadyPublished, NotInStore, Store, StoreError
from elastic_ctr.store.open import open_store

__all__ = ["AlreadyPublished", "FileStore", "NotInStore", "Store", "StoreError", "open_store"]
