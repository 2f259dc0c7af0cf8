"""Names that a file has until it is whole."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

# With a dot: neither nginx's listings nor Hadoop's own tools show it.
_PREFIX = ".part-"


def temporary_beside(path: str) -> str:
    """A name in the folder of `path` that no other writer has, nor had."""
    folder, slash, _ = path.rpartition("/")
    return f"{folder}{slash}{_PREFIX}{secrets.token_hex(8)}"


def is_temporary(name: str) -> bool:
    return name.startswith(_PREFIX)


@contextmanager
def appearing(target: Path) -> Iterator[BinaryIO]:
    """A stream into a local file that appears whole when the block succeeds, and not at all otherwise. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Not mkstemp: the file's mode is that of the process's umask, as for any other file.
    part = Path(temporary_beside(str(target)))
    try:
        with part.open("xb") as out:
            yield out
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
