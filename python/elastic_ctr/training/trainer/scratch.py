"""Errors of a trainer's own disk. They do not count against a task, because another trainer may still do it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elastic_ctr.store import StoreError


class ScratchFailed(OSError):
    """The scratch disk has failed. The trainer must end, and its task goes to another one."""


@contextmanager
def on_scratch(place: Path) -> Iterator[None]:
    """Wrap code that uses only the scratch disk: turn every OSError except a store's into ScratchFailed."""
    try:
        yield
    except (StoreError, ScratchFailed):
        raise
    except OSError as failed:
        raise ScratchFailed(
            f"{failed.filename or place}: {failed.strerror or failed}; "
            "the trainer's scratch folder must have room and be writable"
        ) from failed
