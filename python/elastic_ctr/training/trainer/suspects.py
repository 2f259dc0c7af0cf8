"""Records with numbers so large that the model may not be able to predict them, or to learn of them.

They are predicted alone before anything is trained of their task, so that one row ends no training. A record without such a number
is never blamed: where its prediction is not a number, the training has diverged.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.line import Reason
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.trainer.scratch import on_scratch

# Larger numbers, up to the bound of `Transformer.transform`, come of `transform: []` alone. A network that multiplies numbers, or one whose
# weights have grown, may have no prediction of them. Half as much would make usual prices suspects, each of which is predicted twice.
ORDINARY = 1e3
# Of the task's whole result, so that it fits into a message.
_MOST_FOUND = 100_000
# A number has two parts, which float32 holds both.
_PART = 1 << 20


class Suspect(NamedTuple):
    """A record of the engine's text, and where it begins."""

    place: int
    line: bytes


class TooManyUnpredictable(ValueError):
    """So many of a task that the data is to be mended."""


class Suspects:
    """Those of one task, with a file of them for the engine in which each record has its number for its shows and clicks."""

    def __init__(self, file: Path) -> None:
        """The file is written with the first one."""
        self.file = file
        self._places: list[tuple[str, int]] = []

    def __len__(self) -> int:
        return len(self._places)

    def add(self, path: str, suspects: Iterable[tuple[int, Suspect]]) -> None:
        """Each with its offset in the file or stream. Raises ScratchFailed."""
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
        """Those to leave out, where the engine cannot predict the records with these shows and clicks. Raises TooManyUnpredictable."""
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
