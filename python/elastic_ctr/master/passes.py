"""The calendar of passes, and what is saved after each: pure rules."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count, islice, pairwise

from elastic_ctr.config.data import Data, split_end, split_exists, split_name, split_time
from elastic_ctr.config.roles import MasterConfig


@dataclass(frozen=True)
class Pass:
    """Splits that are trained together. `id` is its last split: what the model knows after it."""

    ordinal: int
    id: str
    splits: tuple[str, ...]
    event_time_max: int
    ends_day: bool


def splits(data: Data, behind: str | None = None) -> Iterator[str]:
    """From start, or the one behind another, to end, both included; without end for ever."""
    coming = _moments(split_time(data.start), data) if behind is None else _behind(behind, data)
    last = None if data.end is None else split_time(data.end)
    for moment in coming:
        if last is not None and moment > last:
            return
        yield split_name(moment, data.split_interval)


def _moments(first: datetime, data: Data) -> Iterator[datetime]:
    """By the wall clock, for so are folders named, also those of several hours: what it leaves out is skipped, and what it
    shows twice comes once.
    """
    for number in count():
        moment = first + number * timedelta(minutes=data.split_interval)
        if split_exists(moment, data.split_interval, data.time_zone):
            yield moment


def _behind(split: str, data: Data) -> Iterator[datetime]:
    return _moments(split_time(split) + timedelta(minutes=data.split_interval), data)


def passes(data: Data, done: int = 0, behind: str | None = None) -> Iterator[Pass]:
    """`splitsPerPass` splits each, of those that there are; the last one may have fewer. A pass that holds a day's last split
    ends the day.

    After `done` passes, the last of which ended with the split `behind`: it may have been the last one once, and short.
    """
    coming = splits(data, behind)
    ordinal = done
    while group := tuple(islice(coming, data.splits_per_pass)):
        ordinal += 1
        days = {split_time(split).date() for split in group if _is_last_of_day(split, data)}
        yield Pass(
            ordinal,
            group[-1],
            group,
            split_end(group[-1], data.split_interval, data.time_zone),
            bool(days),
        )


def _is_last_of_day(split: str, data: Data) -> bool:
    return next(_behind(split, data)).date() != split_time(split).date()


@dataclass(frozen=True)
class SavePlan:
    """What is done to the table after a pass, in order. `kind` is the version published, if any."""

    steps: tuple[str, ...]
    kind: str | None


def save_plan(
    one: Pass, master: MasterConfig, *, records: int, has_base: bool, base_due: bool, is_last: bool
) -> SavePlan:
    """Checkpoint, then delta; at day end and for a first base: shrink (day end), base, batch model (day end), checkpoint.

    A base is always followed by a checkpoint, so no recovery crosses one. A delta's checkpoint comes before it: after a
    rollback the changes since the last version are still marked. An hour without records makes no version. The last
    pass of a bounded run always saves: nothing learned is left behind.
    """
    if one.ends_day and (has_base or records):
        return SavePlan(("shrink", "base", "batch", "checkpoint"), "base")
    if not records:
        return SavePlan((), None)
    if (not has_base and (master.first_base or is_last)) or (has_base and base_due):
        return SavePlan(("base", "checkpoint"), "base")
    checkpoint = is_last or one.ordinal % master.checkpoint_per_pass == 0
    delta = has_base and (is_last or one.ordinal % master.delta_per_pass == 0)
    steps = (("checkpoint",) if checkpoint else ()) + (("delta",) if delta else ())
    return SavePlan(steps, "delta" if delta else None)


def cut(size: int, task_bytes: int, *, whole: bool) -> list[tuple[int, int]]:
    """Byte ranges of a file, equal within one byte; (0, 0) stands for a whole file that cannot be cut, or is empty."""
    if whole or size <= task_bytes:
        return [(0, 0)]
    count = -(-size // task_bytes)
    edges = [size * number // count for number in range(count + 1)]
    # The last range is open (0: to the end of the file), whatever its size was when we looked.
    return [*pairwise(edges[:-1]), (edges[-2], 0)]


def pick_samples(offered: Sequence[Sequence[object]], wanted: int) -> list[tuple[int, int]]:
    """Which of each task's offered sample lines are taken, evenly over tasks: (task, position) pairs."""
    taken: list[tuple[int, int]] = []
    depth = 0
    while len(taken) < wanted:
        row = [(number, depth) for number, lines in enumerate(offered) if depth < len(lines)]
        if not row:
            break
        taken.extend(row[: wanted - len(taken)])
        depth += 1
    return sorted(taken)
