"""Records that a task leaves out by their offset: those that an operator skips, and those that the model cannot predict."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.line import Reason
from elastic_ctr.sources.streams.interface import Lines
from elastic_ctr.training.control import control_pb2 as control

Places = npt.NDArray[np.int64]

SKIPPED = "an operator skips it, by `elastic-ctr pass retry --skip`."


@dataclass(frozen=True)
class LeftOut:
    """The records to leave out of a file's lines: those that begin in these rising ranges of positions, each with its reason."""

    begins: Places
    ends: Places
    reasons: Sequence[Reason]

    def __bool__(self) -> bool:
        return len(self.begins) > 0

    def find(self, places: Places) -> Places:
        """Return the index of the range that includes each position, or -1."""
        if not self:
            return np.full(len(places), -1, np.int64)
        at = np.searchsorted(self.begins, places, side="right").astype(np.int64) - 1
        return np.where((at >= 0) & (places < self.ends[at]), at, -1)


NOTHING = LeftOut(np.zeros(0, np.int64), np.zeros(0, np.int64), ())


def left_out_of(task: control.Task, path: str, lines: Lines) -> LeftOut:
    """Return the records of these lines that the task leaves out."""
    found = sorted(
        (*lines.range_of(offset), each.reason) for each in task.left_out if each.path == path for offset in each.offsets
    )
    if not found:
        return NOTHING
    begins, ends, reasons = zip(*found, strict=True)
    return LeftOut(np.array(begins, np.int64), np.array(ends, np.int64), [Reason(each) for each in reasons])
