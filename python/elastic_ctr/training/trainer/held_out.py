"""The split of a task's records by `data.holdout`, chosen by a hash of their features.

The choice is the same in every epoch, pass, file and order. Shows and clicks do not affect it; otherwise the impressions of a row
without a click could all be on one side, and those with a click on the other.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import xxhash

# Show and click, each preceded by its number of values.
_LABEL_TOKENS = 4


class Parts(NamedTuple):
    """The files of a task's records for the engine."""

    trained: Path
    held_out: Path


def parts_of(converted: Path) -> Parts:
    """Return the paths of the parts. Their suffixes differ from that of a converted file, which a trainer reports to the master."""
    return Parts(converted.with_suffix(".trained"), converted.with_suffix(".held"))


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
