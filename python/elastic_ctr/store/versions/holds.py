"""Publishing holds, as files in the store: what the master and cube-transfer tell each other after a lasting loss of quality.

The master writes `output/holds/<number>.json` and publishes no further version. cube-transfer then goes back to a version below
the suspects, refuses the suspects, and pauses promotion. An operator's `elastic-ctr rollback --resume` makes it write
`output/holds/<number>.resumed`, after which the master publishes again. Both files are immutable, and numbers only grow.
"""

from contextlib import suppress

from pydantic import Field

from elastic_ctr.runtime.documents import DocumentDamaged, read_document
from elastic_ctr.store import AlreadyPublished, FileTooLarge, NotInStore, Store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import Record, VersionId, versions_in


class Hold(Record):
    """Publishing is held.

    Attributes:
        suspects: the oldest and the newest published version that the windows of lower quality speak against; None: there is none.
        reason: a sentence with the figures.
        held_at: unix seconds.
        unreadable: its file is garbage, which may have been a hold: it ends when the file goes, too.
    """

    number: VersionId
    suspects: tuple[VersionId, VersionId] | None = None
    reason: str
    held_at: float
    unreadable: bool = Field(default=False, exclude_if=lambda unreadable: not unreadable)

    def suspects_version(self, version: int) -> bool:
        """Whether the hold speaks against a version."""
        return self.suspects is not None and self.suspects[0] <= version <= self.suspects[1]


def write_hold(store: Store, hold: Hold) -> None:
    """Writing it again changes nothing. Raises StoreError."""
    with suppress(AlreadyPublished):
        store.put_bytes(hold.to_json(), layout.hold(hold.number))


def newest_hold(store: Store, known: int) -> Hold | None:
    """The newest hold with a number above `known`; one that cannot be read suspects no version. Raises StoreError."""
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
    """Whether a hold that could not be read was deleted; one of the master ends by a resumption alone. Raises StoreError."""
    return hold.unreadable and not store.exists(layout.hold(hold.number))


def write_resumption(store: Store, number: int) -> None:
    """Writing it again changes nothing. Raises StoreError."""
    with suppress(AlreadyPublished):
        store.put_bytes(b"", layout.resumption(number))


def is_resumed(store: Store, number: int) -> bool:
    """Whether an operator has ended a hold. Raises StoreError."""
    return number in versions_in(store, layout.HOLDS, ".resumed")
