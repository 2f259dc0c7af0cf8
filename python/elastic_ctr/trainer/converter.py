"""Conversion of a task's lines into the engine's input, and the sample lines of a task."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.features.blocks import lines_in_range, open_lines
from elastic_ctr.features.convert import Converted, Converter
from elastic_ctr.features.line import MAX_LINE_BYTES, parse_features
from elastic_ctr.features.slots import SlotList
from elastic_ctr.store import Store
from elastic_ctr.store.source import Source
from elastic_ctr.trainer.scratch import on_scratch

EXAMPLES = 3
QUARANTINED = 1000

Quarantined = list[dict[str, object]]


def convert_task(
    source: Source, task: control.Task, converter: Converter, target: Path
) -> tuple[control.TaskResult, Quarantined]:
    """Convert the lines of a task into one file for the engine; it is renamed into place when complete.

    Returns counts, refusals and samples, and the refused lines to quarantine. Raises ScratchFailed when the file cannot be
    written, StoreError and OSError when the task cannot be read.
    """
    temporary = target.with_suffix(".part")
    with on_scratch(temporary):
        target.parent.mkdir(parents=True, exist_ok=True)
        out = temporary.open("wb")
    try:
        with source.open(task.path) as raw:
            lines = open_lines(raw, task.path)
            blocks = lines_in_range(lines, task.start, task.end or None, converter.max_line_bytes)
            result, quarantined = _convert_blocks(blocks, task, converter, out)
        with on_scratch(temporary):
            out.close()
            temporary.replace(target)
    except BaseException:
        with on_scratch(temporary):
            # A partial file would fill the disk for the next attempt.
            temporary.unlink(missing_ok=True)
            out.close()
        raise
    return result, quarantined


def _convert_blocks(
    blocks: Iterable[tuple[int, bytes]], task: control.Task, converter: Converter, out: BinaryIO
) -> tuple[control.TaskResult, Quarantined]:
    result, quarantined = control.TaskResult(), Quarantined()
    refusals: dict[str, control.Refusal] = {}
    samples: list[control.Sample] = []
    for offset, block in blocks:
        converted = converter.convert(block)
        with on_scratch(Path(out.name)):
            out.write(converted.text)
        for name in ("records", "shows", "clicks", "ignored", "padding"):
            setattr(result, name, getattr(result, name) + getattr(converted, name))
        for line in converted.refused:
            reason = line.reason.value
            if reason not in refusals:
                refusals[reason] = control.Refusal(reason=reason)
            refusal = refusals[reason]
            refusal.lines += 1
            if len(quarantined) < QUARANTINED:
                excerpt = line.excerpt.decode("utf-8", "backslashreplace")
                known = {"offset": offset + line.offset, "reason": reason}
                quarantined.append({**known, "detail": line.detail, "line": excerpt})
                if len(refusal.examples) < EXAMPLES:
                    refusal.examples.append(excerpt[:80])
        samples.extend(_offer(block, converted, converter.no_keys, task.samples))
    result.refused.extend(refusals[reason] for reason in sorted(refusals))
    # Evenly over the task.
    kept = min(task.samples, len(samples))
    result.samples.extend(samples[position * len(samples) // kept] for position in range(kept))
    return result, quarantined


def _offer(block: bytes, converted: Converted, no_keys: bytes, wanted: int) -> list[control.Sample]:
    """Some accepted lines of a block, split into features, show and click: of each stretch the first that has a key.

    A line without a key, or longer than serving accepts, is trained but not offered as a sample.
    """
    if not wanted or not converted.records:
        return []
    cuts = np.append(0, np.flatnonzero(np.frombuffer(converted.text, np.uint8) == ord("\n")) + 1)
    edges = np.linspace(0, converted.records, min(wanted, converted.records) + 1).astype(np.int64)
    found = []
    for first, last in pairwise(edges.tolist()):
        for record in range(first, last):
            text = converted.text[cuts[record] : cuts[record + 1]]
            if text.endswith(no_keys):
                continue
            start = int(converted.offsets[record])
            end = block.find(b"\n", start)
            features = block[start : len(block) if end < 0 else end].split(None, 2)[2].strip()
            if len(features) <= MAX_LINE_BYTES:
                # `1 show 1 click …`, without the leading zeros that the line may have.
                _, show, _, click, _ = text.split(b" ", 4)
                found.append(control.Sample(line=features.decode("ascii"), show=int(show), click=int(click)))
                break
    return found


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
    lines: int
    slots: int

    def pooled(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """[unique, dim] values -> [lines, slots * dim] sums; a slot without keys is zeros."""
        sums = np.zeros((self.lines * self.slots, values.shape[1]), np.float32)
        np.add.at(sums, self.segments, values[self.positions])
        # Both sizes are given: without lines or keys, reshape cannot infer one.
        return sums.reshape(self.lines, self.slots * values.shape[1])


def sample_keys(lines: Sequence[str], slots: SlotList, sparse_dim: int | None) -> SampleKeys:
    """Parse sample lines. The padding key is in none."""
    flat: list[int] = []
    segments: list[int] = []
    for number, line in enumerate(lines):
        for slot, keys in enumerate(parse_features(line.encode("ascii"), slots, sparse_dim).keys):
            flat.extend(keys)
            segments.extend([number * len(slots) + slot] * len(keys))
    unique, positions = np.unique(np.array(flat, np.uint64), return_inverse=True)
    return SampleKeys(unique, positions.astype(np.int64), np.array(segments, np.int64), len(lines), len(slots))
