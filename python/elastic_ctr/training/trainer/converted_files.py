"""The files of a task's converted records on the trainer's scratch disk, and the split of records by `data.holdout`.

An error of that disk does not count against a task, because another trainer may still do it.

A hash of a record's features chooses its part: the choice is the same in every epoch, pass, file and order. Shows and clicks do not
affect it; otherwise the impressions of a row without a click could all be on one side, and those with a click on the other.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import xxhash

from elastic_ctr.store.backends import StoreError


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


# Show and click, each preceded by its number of values.
_LABEL_TOKENS = 4


class HoldoutParts(NamedTuple):
    """The files of a task's records for the engine."""

    trained: Path
    held_out: Path


def parts_of(converted: Path) -> HoldoutParts:
    """Return the paths of the parts. Their suffixes differ from that of a converted file, which a trainer reports to the master."""
    return HoldoutParts(converted.with_suffix(".trained"), converted.with_suffix(".held"))


def is_chosen(record: bytes, share: float, seed: int = 0) -> bool:
    """True if a record of the engine's text, `1 SHOW 1 CLICK FEATURES…`, is in this share. Another seed chooses independently."""
    features = record.split(b" ", _LABEL_TOKENS)[-1]
    return xxhash.xxh3_64_intdigest(features, seed) < int(share * 2**64)


def hold_out(converted: Path, share: float) -> int:
    """Split a converted file into parts, which appear when they are complete. Return the number of held-out records.

    Raises OSError.
    """
    held = 0
    parts = parts_of(converted)
    unfinished = [Path(f"{part}.part") for part in parts]
    try:
        with ExitStack() as files:
            lines = files.enter_context(converted.open("rb"))
            trained, held_out = (files.enter_context(file.open("wb")) for file in unfinished)
            for line in lines:
                chosen = is_chosen(line, share)
                (held_out if chosen else trained).write(line)
                held += chosen
        for file, part in zip(unfinished, parts, strict=True):
            file.replace(part)
    finally:
        for file in unfinished:
            file.unlink(missing_ok=True)
    return held
