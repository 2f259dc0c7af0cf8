"""Conversion of a task's lines into the engine's input, and the sample lines of a task."""

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.features.blocks import lines_in_range, open_lines
from elastic_ctr.features.convert import Converted, Converter
from elastic_ctr.features.keys import PADDING_KEY
from elastic_ctr.features.line import MAX_LINE_BYTES, parse_features
from elastic_ctr.features.slots import SlotList
from elastic_ctr.store import Store
from elastic_ctr.store.source import Source
from elastic_ctr.trainer.scratch import ScratchFile, on_scratch

EXAMPLES = 3
QUARANTINED = 1000


Quarantined = list[dict[str, object]]


def convert_task(
    source: Source, task: control.Task, converter: Converter, max_line_bytes: int, target: Path
) -> tuple[control.TaskResult, Quarantined]:
    """Convert the lines of a task into one file for the engine; it is renamed into place when complete.

    Returns counts, refusals and samples, and the refused lines to quarantine. Raises ScratchFailed when the file cannot be
    written, StoreError and OSError when the task cannot be read.
    """
    result, quarantined = control.TaskResult(), Quarantined()
    temporary = target.with_suffix(".part")
    with on_scratch(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with source.open(task.path) as raw, closing(ScratchFile(temporary)) as out:
            lines = open_lines(raw, task.path)
            blocks = lines_in_range(lines, task.start, task.end or None, max_line_bytes)
            _convert_blocks(blocks, task, converter, out, result, quarantined)
    except BaseException:
        # A partial file would fill the disk for the next attempt.
        with on_scratch(temporary):
            temporary.unlink(missing_ok=True)
        raise
    with on_scratch(target):
        temporary.replace(target)
    return result, quarantined


def _convert_blocks(
    blocks: Iterable[tuple[int, bytes]],
    task: control.Task,
    converter: Converter,
    out: ScratchFile,
    result: control.TaskResult,
    quarantined: Quarantined,
) -> None:
    refusals: dict[str, control.Refusal] = {}
    samples: list[tuple[str, int, int]] = []
    for offset, block in blocks:
        converted = converter.convert(block)
        out.write(converted.text)
        for name in ("records", "shows", "clicks", "ignored", "padding"):
            setattr(result, name, getattr(result, name) + getattr(converted, name))
        if converted.refused:
            for reason, number in converted.refused.reasons().items():
                refusals.setdefault(reason.value, control.Refusal(reason=reason.value)).lines += number
            for line in converted.refused[: QUARANTINED - len(quarantined)]:
                excerpt = line.excerpt.decode("utf-8", "backslashreplace")
                known = {"offset": offset + line.offset, "reason": line.reason.value}
                quarantined.append({**known, "detail": line.detail, "line": excerpt})
                if len(examples := refusals[line.reason.value].examples) < EXAMPLES:
                    examples.append(excerpt[:80])
        samples.extend(_offer(block, converted, converter.no_keys, task.samples))
    result.refused.extend(refusals[reason] for reason in sorted(refusals))
    kept = _thinned(samples, task.samples)
    result.samples.extend(control.Sample(line=line, show=show, click=click) for line, show, click in kept)


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


def quarantine(store: Store, task: control.Task, lines: Quarantined) -> None:
    """Write refused lines of a task to the store: JSON lines with offset, reason, detail and the line."""
    if lines:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        path = f"quarantine/{task.pass_id}/{task.path.replace('/', '_')}-{task.start}.jsonl"
        store.put_bytes(text.encode(), path, overwrite=True)


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
