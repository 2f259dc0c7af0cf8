"""Column statistics in the store, by their SHA-256. They are written once and never change while a model uses them."""

import hashlib
from contextlib import suppress

from elastic_ctr.features.statistics.document import Statistics
from elastic_ctr.store.backends import AlreadyPublished, NotInStore, Store
from elastic_ctr.store.versions import layout

_WAY_OUT = "put the file back, or begin with an empty state and store"


class StatisticsDamaged(ValueError):
    """The file is absent or changed. The message has its path, the reason and the way out."""


def publish_statistics(store: Store, statistics: Statistics) -> str:
    """Write statistics. Return their digest. Raises StoreError."""
    digest = statistics.digest
    # The name is the digest, so an existing file has the same bytes.
    with suppress(AlreadyPublished):
        store.put_bytes(statistics.to_json().encode(), layout.statistics_file(digest))
    return digest


def read_statistics(store: Store, digest: str) -> Statistics:
    """Return the statistics of a digest. Raises StatisticsDamaged, StoreError."""
    path = layout.statistics_file(digest)
    try:
        text = store.get_bytes(path)
    except NotInStore as gone:
        raise StatisticsDamaged(
            f"{path}, which the features are made with, is not in {store.url} any more; {_WAY_OUT}"
        ) from gone
    if hashlib.sha256(text).hexdigest() != digest:
        raise StatisticsDamaged(f"{path} in {store.url} was changed since it was pinned; {_WAY_OUT}")
    return Statistics.from_json(text)
