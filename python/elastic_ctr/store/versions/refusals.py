"""Refused versions, as files in the store: cube-transfer writes them, the master reads them.

A delta that depends on a refused version cannot be built, so the master publishes a base next. Each refusal is one
immutable file, `output/refused/<version>.json`: `{"version", "reason", "refusedAt"}`. The version is refused if the file
exists, even if its content is damaged.
"""

from collections.abc import Iterable
from contextlib import suppress

from elastic_ctr.runtime.documents import DocumentDamaged, read_document
from elastic_ctr.store import AlreadyPublished, FileTooLarge, NotInStore, Store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import Record, VersionId, versions_in


class Refusal(Record):
    """The final refusal of a version. `refused_at` is in Unix seconds."""

    version: VersionId
    reason: str
    refused_at: float


def write_refusal(store: Store, refusal: Refusal) -> None:
    """Write a refusal, unless the version has one already, which then stays. Raises StoreError."""
    with suppress(AlreadyPublished):
        store.put_bytes(refusal.to_json(), layout.refusal(refusal.version))


def read_refusals(store: Store) -> dict[int, str]:
    """Return the reason of each refused version, oldest first. Raises StoreError."""
    found: dict[int, str] = {}
    for version in versions_in(store, layout.REFUSED, ".json"):
        path = layout.refusal(version)
        try:
            found[version] = read_document(Refusal, store.get_bytes(path)).reason
        except NotInStore:
            continue  # deleted with its version since it was listed
        except (DocumentDamaged, FileTooLarge) as damaged:
            found[version] = f"version {version} is refused, but {path} cannot be read ({damaged})"
    return found


def refused_below(base: int, parent: int, refused: Iterable[int]) -> int | None:
    """Return the oldest refused version that a delta of `parent` would depend on, or None if such a delta can be built.

    Abandoned versions between `base` and `parent` count too; at worst a base is published earlier than necessary.
    """
    return min((version for version in refused if base <= version <= parent), default=None)
