"""How much a pass is trained: the batch size and the epochs that fit its size, and what is added to the logits.

The numbers of `auto` are those of docs/learning.md, which names the sizes that they were measured with.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from elastic_ctr.config.roles import TrainerConfig
from elastic_ctr.training.model.evaluation import bucket_centres

_SMALLEST, _LARGEST = 16, 4096
# Steps of a pass of `auto`, as long as its batches are within these.
_STEPS = 256
# Adam moves a weight by its rate in each step, however small the slope is: steps without a click lower all logits, and a pass with few clicks
# cannot raise them again.
_STEPS_A_CLICK = 16
# Of a micro-pass, which follows the one before within a second: each step takes milliseconds. One that is late has more records, and
# makes up for it in few more steps.
_STREAM_STEPS, _STREAM_LARGEST, _STREAM_MOST_STEPS = 32, 64, 128
# A further epoch sees the same records again: in as many steps it would learn them by heart.
_GROWTH = 4
_TWICE_BELOW = 30_000
_MOST_EPOCHS = 8
# A fall of the held-out logloss by less is none.
_WORTH = 1e-3
_RAREST = math.log(1 / 9_999)
# Clicks that a shift of the logits must outweigh.
_PRIOR = 10.0


def batch_size(trainer: TrainerConfig, records: int, epoch: int, *, clicks: int, stream: bool = False) -> int:
    """Of one epoch of a pass of so many records and clicks; epochs count from 1. `stream`: it is a micro-pass."""
    if trainer.batch_size != "auto":
        return trainer.batch_size
    first = min(max(_power_of_two(records / (_STREAM_MOST_STEPS if stream else _STEPS)), _SMALLEST), _LARGEST)
    if stream:
        first = max(first, min(_power_of_two(records / _STREAM_STEPS), _STREAM_LARGEST))
    size = first * _GROWTH ** (max(epoch, 1) - 1)
    # Half a click more: a pass without one is trained, too.
    while records / size > _STEPS_A_CLICK * (clicks + 0.5):
        size *= 2
    return int(min(size, _LARGEST))


def _power_of_two(number: float) -> int:
    """The nearest one, by ratio."""
    return int(2 ** round(math.log2(max(number, 1))))


def goes_on(
    trainer: TrainerConfig, records: int, losses: Sequence[float | None], *, clicks: int, stream: bool = False
) -> bool:
    """Whether another epoch follows the last one, of a pass of so many records and clicks.

    `losses`: logloss before training, then of the held-out records after each epoch; None where none is held out. `stream`: it is a
    micro-pass, and the next one is waiting.
    """
    first, *epochs = losses
    if trainer.epochs == "auto" and stream:
        return not epochs
    if trainer.epochs != "auto":
        return len(epochs) < trainer.epochs
    if not clicks:
        # The logloss of held-out records without clicks falls for ever.
        return not epochs
    if None in epochs or (first is None and epochs):
        return len(epochs) < (2 if records < _TWICE_BELOW else 1)
    best, without_fall = first or math.inf, 0
    for loss in epochs:
        fell = loss is not None and loss < best * (1 - _WORTH)
        best, without_fall = (loss or best, 0) if fell else (best, without_fall + 1)
    return len(epochs) < _MOST_EPOCHS and without_fall < trainer.patience


def log_odds(clicks: int, shows: int) -> float:
    """Of a click: what an untrained model should say. Half a click and half a show without one are added, so it is finite; late clicks
    may be more than shows. Many shows without any click say that they come later as well as that they are rare: a rate of 1/10,000 at least.
    """
    found = math.log((clicks + 0.5) / (max(shows - clicks, 0) + 0.5))
    return found if clicks else max(found, _RAREST)


def calibrating_shift(
    positives: npt.NDArray[np.float64], negatives: npt.NDArray[np.float64], before: float = 0.0
) -> float:
    """What added to all logits makes the clicks predicted those observed, in histograms by logit: Newton's method.

    A few clicks move it little from the shift `before`: as if ten more said that this one is right.
    """
    counts = np.asarray(positives) + np.asarray(negatives)
    observed, shift = float(np.sum(positives)), before
    for _ in range(50):
        predicted = bucket_centres(shift)
        miss = float(np.sum(counts * predicted)) - observed + _PRIOR * (shift - before)
        step = miss / (float(np.sum(counts * predicted * (1 - predicted))) + _PRIOR)
        shift -= max(-1.0, min(1.0, step))
        if abs(step) < 1e-6:
            break
    return shift
