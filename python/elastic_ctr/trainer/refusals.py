"""Lines and rows of a task that are left out: how many for each reason, and those that go to quarantine."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.features.line import Reason
from elastic_ctr.features.readers.rows import RowBatch
from elastic_ctr.store import Store

EXAMPLES = 3
QUARANTINED = 1000

Quarantined = list[dict[str, object]]


@dataclass(frozen=True, slots=True)
class RefusedAt:
    """A line or row that was left out, and where in its file it begins."""

    place: int
    reason: Reason
    detail: str
    excerpt: bytes


def refused_rows(batch: RowBatch) -> Iterator[RefusedAt]:
    return (RefusedAt(each.place, each.reason, each.detail, each.excerpt) for each in batch.refused)


class Refusals:
    """Of one task."""

    def __init__(self) -> None:
        self.quarantined = Quarantined()
        self._by_reason: dict[str, control.Refusal] = {}

    def add(self, refused: Iterable[RefusedAt]) -> None:
        for each in refused:
            reason = each.reason.value
            if reason not in self._by_reason:
                self._by_reason[reason] = control.Refusal(reason=reason)
            refusal = self._by_reason[reason]
            refusal.lines += 1
            if len(self.quarantined) < QUARANTINED:
                excerpt = each.excerpt.decode("utf-8", "backslashreplace")
                line = {"offset": each.place, "reason": reason, "detail": each.detail, "line": excerpt}
                self.quarantined.append(line)
                if len(refusal.examples) < EXAMPLES:
                    refusal.examples.append(excerpt[:80])

    def report(self, result: control.TaskResult) -> None:
        result.refused.extend(self._by_reason[reason] for reason in sorted(self._by_reason))


def quarantine(store: Store, task: control.Task, lines: Quarantined) -> None:
    """Write refused lines of a task to the store: JSON lines with offset, reason, detail and the line."""
    if lines:
        text = "".join(json.dumps(line) + "\n" for line in lines)
        path = f"quarantine/{task.pass_id}/{task.path.replace('/', '_')}-{task.start}.jsonl"
        store.put_bytes(text.encode(), path, overwrite=True)
