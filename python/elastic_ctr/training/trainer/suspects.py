"""Records with numbers so large that the model may not be able to predict them or to learn from them.

They are predicted separately before their task is trained, so that a single row does not end the training. If the prediction of any
other record is not a number, the training has diverged.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.line import Reason
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.trainer.scratch import on_scratch

# Only `transform: []` lets larger numbers through, up to the bound of `Transformer.transform`. A network that multiplies numbers, or
# whose weights have grown, may not predict them. Half as much would make usual prices suspects, which are predicted twice.
ORDINARY = 1e3
# The most unpredictable records of a task, so that the result fits into a message.
_MOST_FOUND = 100_000
# A record's index is written as show and click in base 2^20, both of which float32 represents exactly.
_PART = 1 << 20


class Suspect(NamedTuple):
    """A record of the engine's text, and the byte position of its source."""

    place: int
    line: bytes


class TooManyUnpredictable(ValueError):
    """A task has so many unpredictable records that the data must be corrected."""


class Suspects:
    """The suspects of one task, and a file of them for the engine in which shows and clicks encode each record's index."""

    def __init__(self, file: Path) -> None:
        """The first suspect creates the file."""
        self.file = file
        self._places: list[tuple[str, int]] = []

    def __len__(self) -> int:
        return len(self._places)

    def add(self, path: str, suspects: Iterable[tuple[int, Suspect]]) -> None:
        """Add suspects, each with its offset in the file or stream. Raises ScratchFailed."""
        lines, mode = [], "ab" if self._places else "wb"
        for offset, suspect in suspects:
            number = len(self._places)
            self._places.append((path, offset))
            _, _, _, _, rest = suspect.line.split(b" ", 4)
            lines.append(b"1 %d 1 %d %b" % (number % _PART, number // _PART, rest))
        if lines:
            with on_scratch(self.file), self.file.open(mode) as out:
                out.writelines(lines)

    def left_out(self, found: tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]) -> list[control.LeftOut]:
        """Return the suspects to leave out: those with these shows and clicks are unpredictable. Raises TooManyUnpredictable."""
        shows, clicks = found
        numbers = sorted((clicks * _PART + shows).astype(np.int64).tolist())
        if len(numbers) > _MOST_FOUND:
            raise TooManyUnpredictable(
                f"the model cannot predict {len(numbers)} rows of the task, because their numbers are too large: give the "
                "features `standardize`, `log1p` or `clip`"
            )
        by_path: dict[str, list[int]] = {}
        for number in numbers:
            path, offset = self._places[number]
            by_path.setdefault(path, []).append(offset)
        reason = Reason.UNPREDICTABLE.value
        return [control.LeftOut(path=path, offsets=offsets, reason=reason) for path, offsets in by_path.items()]
