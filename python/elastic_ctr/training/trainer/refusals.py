"""The refused lines and rows of a task: their number for each reason, and those that go to quarantine."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from elastic_ctr.formats.line import Reason
from elastic_ctr.formats.readers.batches import RowBatch
from elastic_ctr.store.backends import Store
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.trainer.task_lines import parts_of_task

EXAMPLES = 3
QUARANTINED = 1000
_LINE_BYTES, _SENTENCE_BYTES = 80, 300

Quarantined = list[dict[str, object]]


@dataclass(frozen=True, slots=True)
class RefusedAt:
    """A refused line or row, and the byte position at which it begins."""

    place: int
    reason: Reason
    detail: str
    excerpt: bytes
    is_row: bool = False

    @property
    def example(self) -> str:
        """Return an example for a message: the detail of a row, which names the wrong column, or the first bytes of a line."""
        if self.is_row:
            return self.detail.removesuffix(".")[:_SENTENCE_BYTES]
        return self.text[:_LINE_BYTES]

    @property
    def text(self) -> str:
        return self.excerpt.decode("utf-8", "backslashreplace")


def refused_rows(batch: RowBatch) -> Iterator[RefusedAt]:
    return (RefusedAt(each.place, each.reason, each.detail, each.excerpt, is_row=True) for each in batch.refused)


class Refusals:
    """The refusals of one task."""

    def __init__(self) -> None:
        self.quarantined = Quarantined()
        self._by_reason: dict[str, control.Refusal] = {}
        self._by_file: Counter[str] = Counter()

    def add(
        self, path: str, refused: Iterable[RefusedAt], offset_of: Callable[[int], int] = lambda place: place
    ) -> None:
        """Add refusals of a file. `offset_of` converts a byte position to the offset in the file or stream."""
        for each in refused:
            reason = each.reason.value
            if reason not in self._by_reason:
                self._by_reason[reason] = control.Refusal(reason=reason)
            refusal = self._by_reason[reason]
            refusal.lines += 1
            self._by_file[path] += 1
            if len(self.quarantined) < QUARANTINED:
                line = {
                    "file": path,
                    "offset": offset_of(each.place),
                    "reason": reason,
                    "detail": each.detail,
                    "line": each.text,
                }
                self.quarantined.append(line)
                if len(refusal.examples) < EXAMPLES:
                    refusal.examples.append(each.example)

    def report(self, result: control.TaskResult) -> None:
        result.refused.extend(self._by_reason[reason] for reason in sorted(self._by_reason))
        result.refused_of.update(self._by_file)


def quarantine(store: Store, task: control.Task, lines: Quarantined) -> None:
    """Write refused lines of a task to the store, one file for each of its files: JSON lines with file, offset, reason, detail, line."""
    for part in parts_of_task(task):
        if text := "".join(json.dumps(line) + "\n" for line in lines if line["file"] == part.path):
            path = f"quarantine/{task.pass_id}/{part.path.replace('/', '_')}-{part.start}.jsonl"
            store.put_bytes(text.encode(), path, overwrite=True)
