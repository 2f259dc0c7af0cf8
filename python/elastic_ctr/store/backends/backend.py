"""The errors of every store, and the calls that each backend implements."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, Literal, Protocol, TypeVar

if TYPE_CHECKING:
    from elastic_ctr.store.backends.retry import RetryPolicy

E = TypeVar("E", bound=BaseException)

Content = Callable[[], AbstractContextManager[bytes | BinaryIO]]
"""The bytes of a file, from their beginning, as often as they have to be sent."""


class StoreError(OSError):
    """A call to the store failed. The message has the path, the reason and the way out."""


class NotInStore(StoreError):
    """There is no file at the path."""


class AlreadyPublished(StoreError):
    """There is a file at the path already; published files are immutable."""


class FileTooLarge(StoreError):
    """A file that should be small is not. The message has its path and the limit."""


class StoreUnavailable(StoreError):
    """The store is unreachable or busy: a retry may succeed. `after` is the wait in seconds that the store requested."""

    def __init__(self, sentence: str, after: float | None = None) -> None:
        super().__init__(sentence)
        self.after = after


@dataclass(frozen=True)
class Stat:
    """A file or folder. A rename keeps a file's `identity`; a file that replaces it has another one. `modified_at` is in Unix seconds."""

    size: int
    modified_at: float
    folder: bool = False
    identity: str = ""


@dataclass(frozen=True)
class Body:
    """An answer to `read`: the file's Stat, the offset of the first byte, and the bytes, which may break off with StoreUnavailable."""

    stat: Stat
    first: int
    blocks: Iterator[bytes]


class Credentials(Protocol):
    """The header that a store behind HTTP needs with each change."""

    def header(self) -> dict[str, str]: ...


class BucketAccess(Protocol):
    """How a bucket is reached. `credentials_dir` has a file for each variable, with its name, as AWS_SECRET_ACCESS_KEY."""

    @property
    def endpoint(self) -> str | None: ...

    @property
    def region(self) -> str | None: ...

    @property
    def virtual_hosted(self) -> bool: ...

    @property
    def ca_file(self) -> str | None: ...

    @property
    def credentials(self) -> Literal["environment", "files", "instance", "none"]: ...

    @property
    def credentials_dir(self) -> str: ...


class Backend(Protocol):
    """Every method raises StoreUnavailable if a retry may succeed, else another StoreError.

    Paths are relative and checked; "" is the root.
    """

    url: str

    def stat(self, path: str, deed: str = "looked up in") -> Stat:
        """Return the Stat of a file or folder. An error's message is "PATH cannot be `deed` STORE". Raises NotInStore."""

    def walk(self, folder: str) -> list[tuple[str, Stat]]:
        """Return the (path, Stat) of each file below a folder, in any order, [] if it is absent."""

    def list(self, folder: str) -> list[tuple[str, Stat]]:
        """Return the (name, Stat) of each entry, in any order. Raises NotInStore if the folder is absent or a file."""

    def read(self, path: str, start: int) -> AbstractContextManager[Body]:
        """Return the bytes from `start` on; a Body may begin earlier. Past the end there are no bytes. Raises NotInStore."""

    def create(self, content: Content, path: str, retry: "RetryPolicy") -> None:
        """Publish a file, and create its folders. It appears whole, once, or not at all. Raises AlreadyPublished."""

    def replace(self, content: Content, path: str, retry: "RetryPolicy") -> None:
        """Publish a file in the place of one that may be there. Readers see the old or the new one."""

    def verify(self, retry: "RetryPolicy") -> None:
        """Check that the store can keep its promises, without which `create` refuses. Raises StoreError with the reason."""

    def delete(self, path: str) -> None:
        """Delete a file, or a folder with its content. An absent path is no error."""

    def close(self) -> None: ...


def relative(path: str) -> str:
    """Return a path as a Backend takes it. Raises StoreError for an absolute one, `..`, or an empty one."""
    pure = PurePosixPath(path)
    if not path or pure.is_absolute() or ".." in pure.parts or "\0" in path:
        raise StoreError(f"{path!r} is not a path inside the store; give a relative one without '..'")
    return "" if str(pure) == "." else str(pure)


def checked_name(name: object, folder: str, url: str) -> str:
    """Return a name from a listing, which is untrusted. Raises StoreError for one that would lead out of the folder."""
    if not isinstance(name, str) or name in {"", ".", ".."} or "/" in name or "\0" in name:
        raise StoreError(
            f"{folder or '/'} cannot be listed in {url}: {str(name)[:80]!r} is not a file name; is it really a store?"
        )
    return name


def cause_of(error: BaseException | None, kind: type[E]) -> E | None:
    """Return the first error of a kind in the chain of causes, or None: libraries wrap the errors of sockets."""
    while error is not None and not isinstance(error, kind):
        error = error.__cause__ or error.__context__
    return error
