"""Records that are held out of training: a share of them, chosen by their features.

A record is held out in every epoch and every pass that it comes in, whatever file and order it is in. Shows and clicks have no part
in the choice: otherwise all impressions of one row without a click could be held out, and all those with one be trained.
"""

from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import xxhash

# Show and click, each behind its number of values.
_LABEL_TOKENS = 4


class Parts(NamedTuple):
    """The files of a task's records for the engine."""

    trained: Path
    held_out: Path


def parts_of(converted: Path) -> Parts:
    """Not named as a converted file: a trainer tells the master which of those it has."""
    return Parts(converted.with_suffix(".trained"), converted.with_suffix(".held"))


def is_chosen(record: bytes, share: float, seed: int = 0) -> bool:
    """Whether a record, `1 SHOW 1 CLICK FEATURES…` as the engine reads it, is of this share; another seed chooses independently."""
    features = record.split(b" ", _LABEL_TOKENS)[-1]
    return xxhash.xxh3_64_intdigest(features, seed) < int(share * 2**64)


def hold_out(converted: Path, share: float) -> int:
    """Divide a converted file, whose records are lines; the parts appear when they are complete. Returns how many are held out.

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
