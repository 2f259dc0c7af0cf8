"""The calls to a store on another machine: one try each."""

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol, TypeVar

from elastic_ctr.store.interface import StoreError, StoreUnavailable, checked_path
from elastic_ctr.store.retry import RetryPolicy, resumed

E = TypeVar("E", bound=BaseException)


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


class Remote(Protocol):
    """Every method raises StoreUnavailable where a retry may succeed, and another StoreError where it will not.

    Paths are relative and checked; "" is the root.
    """

    url: str

    def stat(self, path: str) -> Stat:
        """Raises NotInStore."""

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
    """A path as a Remote takes it. Raises StoreError for one that leaves the store."""
    pure = str(checked_path(path))
    return "" if pure == "." else pure


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


class FileChanged(StoreError):
    """The file was replaced while it was read."""


class Reading:
    """One file as it was when its first byte came: what is read later must be of the same one."""

    def __init__(self, remote: Remote, path: str, retry: RetryPolicy) -> None:
        self._remote = remote
        self._path = path
        self._retry = retry
        self._seen: tuple[int, str] | None = None

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        """The bytes from `start` on. Raises NotInStore, FileChanged, StoreError."""
        return resumed(self._part, start, self._retry)

    def _part(self, start: int) -> Iterator[bytes]:
        with self._remote.read(self._path, start) as body:
            file = (body.stat.size, body.stat.identity)
            if self._seen not in (None, file) or body.first > start:
                raise FileChanged(f"{self._path} in {self._remote.url} was changed while it was read; read it again")
            self._seen = file
            reached = body.first
            for block in body.blocks:
                fresh = block[max(0, start - reached) :]
                reached += len(block)
                if fresh:
                    yield fresh
            if reached < body.stat.size:
                raise StoreUnavailable(
                    f"{self._path} cannot be read from {self._remote.url}: it broke off before the end; try again"
                )
