"""Files in the store through which the master and cube-transfer react to bad versions: refusals, and publishing holds.

A delta that depends on a refused version cannot be built, so the master publishes a base next. Each refusal is one
immutable file, `output/refused/<version>.json`: `{"version", "reason", "refusedAt"}`. cube-transfer writes it, the master reads it. The
version is refused if the file exists, even if its content is damaged.

On a lasting loss of quality the master writes `output/holds/<number>.json` and stops publishing. cube-transfer then goes back to a
version below the suspects, refuses the suspects, and pauses promotion. At an operator's `elastic-ctr rollback --resume` it writes
`output/holds/<number>.resumed`, and the master publishes again. Both files are immutable, and numbers only grow.
"""

from collections.abc import Iterable
from contextlib import suppress

from pydantic import Field

from elastic_ctr.runtime.documents import DocumentDamaged, read_document
from elastic_ctr.store.backends import AlreadyPublished, FileTooLarge, NotInStore, Store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import Record, VersionId
from elastic_ctr.store.versions.published_files import versions_in


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


class Hold(Record):
    """A file that pauses publishing.

    Attributes:
        suspects: the oldest and the newest published version that may have caused the lower quality; None: there is none.
        reason: a sentence with the figures.
        held_at: when publishing stopped, in Unix seconds.
        unreadable: the file is damaged; publishing is paused until an operator deletes it or resumes. Never true in a file.
    """

    number: VersionId
    suspects: tuple[VersionId, VersionId] | None = None
    reason: str
    held_at: float
    unreadable: bool = Field(default=False, exclude_if=lambda unreadable: not unreadable)

    def suspects_version(self, version: int) -> bool:
        """True if the version is one of the suspects."""
        return self.suspects is not None and self.suspects[0] <= version <= self.suspects[1]


def write_hold(store: Store, hold: Hold) -> None:
    """Write the file, unless it is in the store already. Raises StoreError."""
    with suppress(AlreadyPublished):
        store.put_bytes(hold.to_json(), layout.hold(hold.number))


def newest_hold(store: Store, known: int) -> Hold | None:
    """Return the newest hold with a number above `known`, or None. A damaged file has no suspects. Raises StoreError."""
    numbers = versions_in(store, layout.HOLDS, ".json")
    if not numbers or numbers[-1] <= known:
        return None
    path = layout.hold(numbers[-1])
    try:
        return read_document(Hold, store.get_bytes(path))
    except NotInStore:
        return None
    except (DocumentDamaged, FileTooLarge) as damaged:
        sentence = f"{path} cannot be read ({damaged}), and may be a hold of the master; delete it, or run `elastic-ctr rollback --resume`, to go on"
        return Hold(number=numbers[-1], reason=sentence, held_at=0, unreadable=True)


def is_gone(store: Store, hold: Hold) -> bool:
    """True if the hold's file was unreadable and was deleted. A readable one ends only by a resumption. Raises StoreError."""
    return hold.unreadable and not store.exists(layout.hold(hold.number))


def write_resumption(store: Store, number: int) -> None:
    """Write the file, unless it is in the store already. Raises StoreError."""
    with suppress(AlreadyPublished):
        store.put_bytes(b"", layout.resumption(number))


def is_resumed(store: Store, number: int) -> bool:
    """True if an operator has resumed publishing. Raises StoreError."""
    return number in versions_in(store, layout.HOLDS, ".resumed")
