"""Conversion of a task's lines into the engine's input, and the sample lines of a task."""

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.features.blocks import lines_in_range, open_lines
from elastic_ctr.features.convert import Converted, Converter, RefusedLine
from elastic_ctr.features.keys import PADDING_KEY
from elastic_ctr.features.line import MAX_LINE_BYTES, parse_features
from elastic_ctr.features.slots import SlotList
from elastic_ctr.store import Store
from elastic_ctr.store.source import Source
from elastic_ctr.trainer.scratch import ScratchFile, on_scratch

EXAMPLES = 3
QUARANTINED = 1000


@dataclass
class TaskCounts:
    """Counts and excerpts from the conversion of a task."""

    records: int = 0
    shows: int = 0
    clicks: int = 0
    ignored: int = 0
    padding: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    quarantined: list[dict[str, object]] = field(default_factory=list)
    samples: list[tuple[str, int, int]] = field(default_factory=list)


def convert_task(
    source: Source, task: control.Task, converter: Converter, max_line_bytes: int, target: Path
) -> TaskCounts:
    """Convert the lines of a task into one file for the engine; it is renamed into place when complete.

    Raises ScratchFailed when the file cannot be written, StoreError and OSError when the task cannot be read.
    """
    counts = TaskCounts()
    temporary = target.with_suffix(".part")
    with on_scratch(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        _convert_into(temporary, source, task, converter, max_line_bytes, counts)
    except BaseException:
        # A partial file would fill the disk for the next attempt.
        with on_scratch(temporary):
            temporary.unlink(missing_ok=True)
        raise
    with on_scratch(target):
        temporary.replace(target)
    counts.samples = _thinned(counts.samples, task.samples)
    return counts


def _convert_into(
    target: Path, source: Source, task: control.Task, converter: Converter, max_line_bytes: int, counts: TaskCounts
) -> None:
    with source.open(task.path) as raw, closing(ScratchFile(target)) as out:
        lines = open_lines(raw, task.path)
        for offset, block in lines_in_range(lines, task.start, task.end or None, max_line_bytes):
            converted = converter.convert(block)
            out.write(converted.text)
            counts.records += converted.records
            counts.shows += converted.shows
            counts.clicks += converted.clicks
            counts.ignored += converted.ignored
            counts.padding += converted.padding
            if converted.refused:
                for reason, number in converted.refused.reasons().items():
                    counts.refused[reason.value] = counts.refused.get(reason.value, 0) + number
                _keep_examples(counts, offset, converted.refused[: QUARANTINED - len(counts.quarantined)])
            counts.samples.extend(_offer(block, converted, converter.no_keys, task.samples))


def _keep_examples(counts: TaskCounts, offset: int, refused: Iterable[RefusedLine]) -> None:
    for line in refused:
        reason = line.reason.value
        excerpt = line.excerpt.decode("utf-8", "backslashreplace")
        counts.quarantined.append(
            {"offset": offset + line.offset, "reason": reason, "detail": line.detail, "line": excerpt}
        )
        examples = counts.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES:
            examples.append(excerpt[:80])


def _thinned(samples: list[tuple[str, int, int]], wanted: int) -> list[tuple[str, int, int]]:
    """Evenly over the task."""
    if len(samples) <= wanted:
        return samples
    return [samples[position * len(samples) // wanted] for position in range(wanted)]


def _offer(block: bytes, converted: Converted, no_keys: bytes, wanted: int) -> list[tuple[str, int, int]]:
    """Some accepted lines of a block, split into features, show and click: of each stretch the first that has a key.

    A line without a key, or longer than serving accepts, is trained but not offered as a sample.
    """
    if not wanted or not converted.records:
        return []
    ends = np.flatnonzero(np.frombuffer(converted.text, np.uint8) == ord("\n")) + 1
    edges = np.linspace(0, converted.records, min(wanted, converted.records) + 1).astype(np.int64)
    found = []
    for first, last in pairwise(edges.tolist()):
        for record in range(first, last):
            if converted.text.endswith(no_keys, 0, int(ends[record])):
                continue
            if (sample := _sample(block, int(converted.offsets[record]))) is not None:
                found.append(sample)
                break
    return found


def _sample(block: bytes, start: int) -> tuple[str, int, int] | None:
    end = block.find(b"\n", start)
    show, click, features = block[start : len(block) if end < 0 else end].split(None, 2)
    line = features.strip().decode("ascii")
    return (line, _count(show), _count(click)) if len(line) <= MAX_LINE_BYTES else None


def _count(digits: bytes) -> int:
    # Python refuses to read more than 4,300 digits, and leading zeros are allowed.
    return int(digits.lstrip(b"0") or b"0")


def quarantine(store: Store, task: control.Task, counts: TaskCounts) -> None:
    """Write up to QUARANTINED refused lines of a task to the store: JSON lines with offset, reason, detail and the line."""
    if counts.quarantined:
        text = "".join(json.dumps(line) + "\n" for line in counts.quarantined)
        path = f"quarantine/{task.pass_id}/{task.path.replace('/', '_')}-{task.start}.jsonl"
        store.put_bytes(text.encode(), path, overwrite=True)


def result_of(task: control.Task, counts: TaskCounts) -> control.TaskResult:
    return control.TaskResult(
        task_id=task.id,
        attempt=task.attempt,
        records=counts.records,
        shows=counts.shows,
        clicks=counts.clicks,
        ignored=counts.ignored,
        padding=counts.padding,
        refused=[
            control.Refusal(reason=reason, lines=lines, examples=counts.examples.get(reason, []))
            for reason, lines in sorted(counts.refused.items())
        ],
        samples=[control.Sample(line=line, show=show, click=click) for line, show, click in counts.samples],
    )


@dataclass(frozen=True)
class SampleKeys:
    """The unique keys of sample lines, and the keys that each slot of each line sums."""

    keys: npt.NDArray[np.uint64]
    positions: npt.NDArray[np.int64]
    segments: npt.NDArray[np.int64]
    rows: int

    def pooled(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """[unique, dim] values -> [lines, slots * dim] sums; a slot without keys is zeros."""
        sums = np.zeros((self.rows, values.shape[1]), np.float32)
        np.add.at(sums, self.segments, values[self.positions])
        return sums


def sample_keys(lines: Sequence[str], slots: SlotList, sparse_dim: int | None) -> SampleKeys:
    """Parse sample lines. The padding key is in none."""
    flat: list[int] = []
    segments: list[int] = []
    for number, line in enumerate(lines):
        for slot, keys in enumerate(parse_features(line.encode("ascii"), slots, sparse_dim).keys):
            flat.extend(keys)
            segments.extend([number * len(slots) + slot] * len(keys))
    everything = np.array(flat, np.uint64)
    unique, positions = np.unique(everything, return_inverse=True)
    if len(unique) and unique[0] == PADDING_KEY:
        raise AssertionError("the parser drops the padding key")
    return SampleKeys(unique, positions.astype(np.int64), np.array(segments, np.int64), len(lines) * len(slots))
