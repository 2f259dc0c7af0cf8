"""Pure functions of the training: batch size and epochs by the size of a pass, and the constants added to logits.

docs/learning.md explains the numbers of `auto` and the measurements behind them.
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from elastic_ctr.config.training_settings import TrainerSettings
from elastic_ctr.training.model.evaluation import bucket_centres

_SMALLEST, _LARGEST = 16, 4096
# Steps of a pass with `auto`, within these limits of the batch size.
_STEPS = 256
# Adam moves a weight by about its learning rate in each step, however small the gradient is. So many steps without a click lower all
# logits, and the few clicks of a pass cannot raise them again.
_STEPS_A_CLICK = 16
# Steps and batch size of a micro-pass, which must end within about a second; each step takes milliseconds. A late micro-pass has
# more records and needs few more steps, so training catches up.
_STREAM_STEPS, _STREAM_LARGEST, _STREAM_MOST_STEPS = 32, 64, 128
# The batch size grows by this in each further epoch: with as many steps over the same records the model would overfit.
_GROWTH = 4
_TWICE_BELOW = 30_000
_MOST_EPOCHS = 8
# A smaller relative decrease of the logloss counts as none.
_WORTH = 1e-3
_RAREST = math.log(1 / 9_999)
# Weight of the previous shift, in clicks.
_PRIOR = 10.0


def batch_size(trainer: TrainerSettings, records: int, epoch: int, *, clicks: int, stream: bool = False) -> int:
    """Return the records of a step in an epoch (from 1) of a pass of so many records and clicks. `stream`: it is a micro-pass."""
    if trainer.batch_size != "auto":
        return trainer.batch_size
    first = min(max(_power_of_two(records / (_STREAM_MOST_STEPS if stream else _STEPS)), _SMALLEST), _LARGEST)
    if stream:
        first = max(first, min(_power_of_two(records / _STREAM_STEPS), _STREAM_LARGEST))
    size = first * _GROWTH ** (max(epoch, 1) - 1)
    # Plus half a click, because a pass without any is trained, too.
    while records / size > _STEPS_A_CLICK * (clicks + 0.5):
        size *= 2
    return int(min(size, _LARGEST))


def _power_of_two(number: float) -> int:
    """Return the power of two that is nearest by ratio."""
    return int(2 ** round(math.log2(max(number, 1))))


def goes_on(
    trainer: TrainerSettings, records: int, losses: Sequence[float | None], *, clicks: int, stream: bool = False
) -> bool:
    """True if a pass of so many records and clicks is trained for another epoch.

    `losses`: as in `Learning.losses`. `stream`: it is a micro-pass, and the next one is waiting.
    """
    first, *epochs = losses
    if trainer.epochs == "auto" and stream:
        return not epochs
    if trainer.epochs != "auto":
        return len(epochs) < trainer.epochs
    if not clicks:
        # Without clicks the logloss would fall for ever.
        return not epochs
    if None in epochs or (first is None and epochs):
        return len(epochs) < (2 if records < _TWICE_BELOW else 1)
    best, without_fall = first or math.inf, 0
    for loss in epochs:
        fell = loss is not None and loss < best * (1 - _WORTH)
        best, without_fall = (loss or best, 0) if fell else (best, without_fall + 1)
    return len(epochs) < _MOST_EPOCHS and without_fall < trainer.patience


def log_odds(clicks: int, shows: int) -> float:
    """Return the log-odds of a click, the right logit of an untrained model. Half a click and half a show without one make it finite;
    late clicks may exceed shows. Without any click the rate is at least 1/10,000, because clicks may come later.
    """
    found = math.log((clicks + 0.5) / (max(shows - clicks, 0) + 0.5))
    return found if clicks else max(found, _RAREST)


def calibrating_shift(
    positives: npt.NDArray[np.float64], negatives: npt.NDArray[np.float64], before: float = 0.0
) -> float:
    """Return the shift of all logits that makes predicted clicks the observed ones, by Newton's method on histograms [BUCKETS] by logit.

    A prior with the weight of ten clicks at the shift `before` keeps a few clicks from moving it far.
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
