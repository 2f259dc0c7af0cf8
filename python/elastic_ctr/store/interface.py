"""The errors of every store, and the calls that each kind of address answers."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import BinaryIO, Protocol, TypeVar

E = TypeVar("E", bound=BaseException)


class StoreError(OSError):
    """The store could not do what was asked: which path, why, and what to do."""


class NotInStore(StoreError):
    """No file stands at the path."""


class AlreadyPublished(StoreError):
    """A file stands at the path already; published files are immutable."""


class FileTooLarge(StoreError):
    """A file that should be small is not: which, and how large it may be."""


class StoreUnavailable(StoreError):
    """The store is unreachable or busy: a retry may succeed. `after` are seconds that the store asked for."""

    def __init__(self, sentence: str, after: float | None = None) -> None:
        super().__init__(sentence)
        self.after = after


@dataclass(frozen=True)
class Stat:
    """A file or folder. `identity` stays with a file over a rename; a file that replaces it has another."""

    size: int
    modified_at: float
    folder: bool = False
    identity: str = ""


@dataclass(frozen=True)
class Body:
    """An answer to `read`: the file it is of, the offset of its first byte, the bytes. They may break off with StoreUnavailable."""

    stat: Stat
    first: int
    blocks: Iterator[bytes]


class Credentials(Protocol):
    """What a store behind HTTP wants with each change."""

    def header(self) -> dict[str, str]: ...


class Backend(Protocol):
    """Every method raises StoreUnavailable where a retry may succeed, and another StoreError where it will not.

    Paths are relative and checked; "" is the root.
    """

    url: str

    def stat(self, path: str, deed: str = "looked up in") -> Stat:
        """An error says that the path cannot be `deed` the store. Raises NotInStore."""

    def list(self, folder: str) -> list[tuple[str, Stat]]:
        """Names and what they are, in any order. Raises NotInStore for an absent folder, or a file."""

    def read(self, path: str, start: int) -> AbstractContextManager[Body]:
        """From byte `start` on; an answer may begin earlier. Past the end there are no bytes. Raises NotInStore."""

    def put(self, content: bytes | BinaryIO, path: str, target: str) -> None:
        """Write a file that is to become `target`, and the folders above it. When this raises, it may stand there torn."""

    def move(self, source: str, target: str, *, overwrite: bool) -> None:
        """Rename in one step. Raises NotInStore without a source, AlreadyPublished for a target unless overwriting.

        After StoreUnavailable it may have been done.
        """

    def delete(self, path: str) -> None:
        """A file, or a folder with all it holds. Absent is done."""

    def close(self) -> None: ...


def relative(path: str) -> str:
    """A path as a Backend takes it. Raises StoreError for an absolute one, `..`, or an empty one."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise StoreError(f"{path!r} is not a path inside the store; give a relative one without '..'")
    return "" if str(pure) == "." else str(pure)


def checked_name(name: object, folder: str, url: str) -> str:
    """A name in a listing, which came over the network. Raises StoreError for one that would lead elsewhere."""
    if not isinstance(name, str) or name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise StoreError(
            f"{folder or '/'} cannot be listed in {url}: {str(name)[:80]!r} is not a file name; is it really a store?"
        )
    return name


def cause_of(error: BaseException | None, kind: type[E]) -> E | None:
    """The error of a kind that led to this one: libraries wrap what the socket said."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error
