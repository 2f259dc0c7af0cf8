"""The quality that a version needs to be published, so that a diverged training never goes live.

The quality of pass t's version on fresh data is known only after the next pass. At publication only its quality on records that
it has just learned is known, which is optimistic, so a value far too low is a certain sign. It is compared with the quality of
the last published version on the first records which that version had not learned. If every pass makes a version, these are the
same records. After a refusal they are not, and harder data would refuse every further version; so after a few refusals in a row
the pass's own quality before training is the reference.

A stream has a window every second or so, and a live version is also judged by the windows after it: if they are worse, publishing is
paused. A model adapts to changed clicks within seconds, even to poisoned ones, and its figures then recover. So a large loss counts
at once.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from elastic_ctr.config.training_settings import LiveLoss, QualityLoss
from elastic_ctr.store.versions.manifest import Quality
from elastic_ctr.training.master.generations.checkpoint_files import PublishRefused
from elastic_ctr.training.master.ledger.figure_table import Compared, Expected, Window, together
from elastic_ctr.training.master.ledger.rows import PassRow, Sample, WindowQuality

AnyLoss = TypeVar("AnyLoss", QualityLoss, LiveLoss)
# Standard errors by which a difference must exceed its limit; chance alone does in less than one of a thousand comparisons.
_CHANCE = 3.0
# The fewest clicks, and shows without a click, of a pass whose logloss is compared with a constant's. The rate of fewer is noise.
_FEWEST_OF_EACH = 100
# If features do not predict clicks at all, a sound model is some percent worse than the click rate, which it does not know in advance:
# its last steps follow single records, and each window of a stream has another rate. A diverged model is worse by half or more.
_WORSE_THAN_CONSTANT = 1.1
# The fewest rows of a sample; fewer may all have the same keys under a vocabulary.
_FEWEST_ROWS = 10
_ROUNDING = 4 * float(np.finfo(np.float32).eps)
_NOTHING_LEARNED = (
    "it would rank nothing; look at the scale of the numbers (`elastic-ctr analyze` names those far from 1), or lower the learning rates "
    "of model.table and model.dense"
)
MOST_REFUSED = 3
"""Versions in a row that are refused by a comparison with the published one."""


# The windows on trial are the newest ones, as few as have so many clicks. An abrupt loss, by the limits of `QualityLoss`, shows in
# few clicks; a smaller, lasting loss needs more of them.
_ABRUPT_CLICKS, _LASTING_CLICKS = (100, 1000), (3000, 10_000)
# The fewest windows on trial if they have less than 1000 clicks together. With this many windows or more, the worst is left out.
_FEWEST_WINDOWS = 3
MOST_ON_TRIAL = 50
"""Windows on trial, at most. cube-transfer must remember a version from before them."""
MOST_COMPARED = 100
"""Windows that those on trial are compared with, at most."""
LOOKED_AT = MOST_ON_TRIAL + MOST_COMPARED
"""Windows that are read at most: those on trial, and those that they are compared with."""


def auc_error(quality: Compared) -> float:
    """Return an upper bound of an AUC's standard error, 0 without an AUC. The variance is at most AUC (1 - AUC) / min(clicks, shows
    without click) (van Dantzig 1951); AUC (1 - AUC) is replaced by its maximum 1/4, or few impressions with an AUC of 1 had no error.
    """
    return 0.0 if quality.auc is None else 0.5 / math.sqrt(min(quality.clicks, quality.shows - quality.clicks))


def auc_deviation(quality: Compared) -> float:
    """Return an AUC's standard error for many clicks (Hanley and McNeil 1982). It is below `auc_error`, and 0 for an AUC of 1."""
    if quality.auc is None:
        return 0.0
    auc, clicks, others = quality.auc, quality.clicks, max(quality.shows - quality.clicks, 1)
    above, below = auc / (2 - auc) - auc**2, 2 * auc**2 / (1 + auc) - auc**2
    return math.sqrt((auc * (1 - auc) + (clicks - 1) * above + (others - 1) * below) / (clicks * others))


def calibration_error(quality: Compared) -> float:
    """Return an upper bound of a calibration's standard error: that of a Poisson number of clicks."""
    return 0.0 if quality.calibration is None else quality.calibration / math.sqrt(quality.clicks)


class Lost(NamedTuple):
    """A figure that has become worse by more than its limit plus chance."""

    figure: Literal["auc", "calibration"]
    now: float
    before: float
    limit: float
    chance: float

    def words(self, now: str, before: str, setting: str) -> str:
        """Return the part of a message with the figures; `now` and `before` name their sources."""
        name, worse = ("AUC", "lower") if self.figure == "auc" else ("calibration", "farther from 1")
        return (
            f"{name} {self.now:.4f} of {now} is {worse} than the {self.before:.4f} {before} by more than "
            f"{setting}.{self.figure} {self.limit:g} and {self.chance:.4f} for chance"
        )


def abrupt_loss(before_live: QualityLoss, after_live: LiveLoss) -> QualityLoss:
    """Return the limits of an abrupt loss: for each figure the wider of both, so that "never" after live switches it off, too."""
    wider = {name: max(getattr(before_live, name), getattr(after_live, name)) for name in ("auc", "calibration")}
    return before_live.model_copy(update=wider)


def limits_of(limits: AnyLoss, late_clicks: bool) -> AnyLoss:
    """Return the limits, without one for the calibration if clicks come late: a window then has the clicks of earlier impressions, so
    its calibration follows changes of the traffic.
    """
    return limits.model_copy(update={"calibration": math.inf}) if late_clicks else limits


def lost(
    now: Compared, before: Compared, limits: QualityLoss | LiveLoss, error: Callable[[Compared], float] = auc_error
) -> Lost | None:
    """Return the first figure that is worse, or None. Undefined figures are not compared. `error`: the standard error of an AUC."""
    if now.auc is not None and before.auc is not None:
        chance = _CHANCE * math.hypot(error(now), error(before))
        if before.auc - now.auc > limits.auc + chance:
            return Lost("auc", now.auc, before.auc, limits.auc, chance)
    if now.calibration is not None and before.calibration is not None:
        chance = _CHANCE * math.hypot(calibration_error(now), calibration_error(before))
        if abs(now.calibration - 1) - abs(before.calibration - 1) > limits.calibration + chance:
            return Lost("calibration", now.calibration, before.calibration, limits.calibration, chance)
    return None


def refuse_worse(current: PassRow, after: Quality | None, expected: Expected | None, limits: QualityLoss) -> None:
    """Raises PublishRefused if a figure is worse than expected. Without a published version, records or clicks nothing is compared."""
    if after is None or expected is None or (found := lost(after, expected.quality, limits)) is None:
        return
    raise PublishRefused(
        f"{found.words(f'pass {current.id} after training', expected.of, 'maxQualityLoss')}; mend the data or lower the learning rates of "
        f"model.table and model.dense, or raise master.config.maxQualityLoss.{found.figure}"
    )


def refuse_worse_than_constant(current: PassRow, after: Quality | None, *, late_clicks: bool) -> None:
    """Raises PublishRefused if a constant probability would have been better. With late clicks there is no check, because a window's
    click rate is not that of its impressions.
    """
    if after is None or late_clicks or min(after.clicks, after.shows - after.clicks) < _FEWEST_OF_EACH:
        return
    rate = after.clicks / after.shows
    constant = -rate * math.log(rate) - (1 - rate) * math.log1p(-rate)
    if after.logloss > _WORSE_THAN_CONSTANT * constant:
        raise PublishRefused(
            f"the logloss {after.logloss:.4f} of pass {current.id} after training is above the {constant:.4f} of one probability for all rows, "
            f"its click rate {rate:.4g}: {_NOTHING_LEARNED}"
        )


def refuse_equal_scores(current: PassRow, scores: npt.NDArray[np.float32], samples: Sequence[Sample]) -> None:
    """Raises PublishRefused if a version gives all sample rows the same score although they differ and only some were clicked."""
    rows, clicks = {line for line, _, _ in samples}, sum(click for _, _, click in samples)
    if len(rows) < _FEWEST_ROWS or not 0 < clicks < sum(show for _, show, _ in samples):
        return
    if np.ptp(scores) <= _ROUNDING * scores.max():
        raise PublishRefused(
            f"the model of pass {current.id} answers {scores.max():.6g} for each of {len(rows)} different rows: {_NOTHING_LEARNED}"
        )


def without_worst(windows: Sequence[WindowQuality]) -> WindowQuality:
    """Return the windows' figures as one. If there are three or more, each figure leaves out its worst window, perhaps an outlier."""
    if len(windows) < _FEWEST_WINDOWS:
        return together(windows)
    auc = together(sorted(windows, key=lambda each: each.auc)[1:])
    calibration = together(sorted(windows, key=lambda each: abs(each.calibration - 1))[:-1])
    return auc._replace(calibration=calibration.calibration)


class LossAfterLive(NamedTuple):
    """The reason to pause publishing, and the oldest and the newest published version that may be the cause, or None."""

    reason: str
    suspects: tuple[int, int] | None


def loss_after_live(
    windows: Sequence[Window], abrupt: QualityLoss, lasting: LiveLoss, earlier: Sequence[WindowQuality] = ()
) -> LossAfterLive | None:
    """Compare the newest windows with those published before them. Return the loss, or None. `windows` are consecutive, the newest first.
    `earlier` windows, of the model that this one started from, precede them and are never on trial.

    A window measures the model after the pass before it, so that pass's version is the oldest suspect.
    """
    for clicks in (*_ABRUPT_CLICKS, *_LASTING_CLICKS):
        few = clicks in _ABRUPT_CLICKS
        count = _on_trial(windows, clicks)
        trial = windows[:count]
        published = [each.quality for each in windows[count:] if each.version is not None]
        before = [*published, *earlier][:MOST_COMPARED]
        odd = count < _FEWEST_WINDOWS and sum(each.quality.clicks for each in trial) < _ABRUPT_CLICKS[-1]
        if not count or not before or odd:
            continue
        now = without_worst([each.quality for each in trial])
        loss = lost(now, together(before), abrupt if few else lasting, auc_error if few else auc_deviation)
        if loss is not None:
            first = trial[-1].ordinal - 1
            suspects = [each.version for each in windows if each.version is not None and each.ordinal >= first]
            return LossAfterLive(_reason(loss, count, len(before), lasting), _ends(suspects))
    return None


def _ends(versions: Sequence[int]) -> tuple[int, int] | None:
    return (min(versions), max(versions)) if versions else None


def _reason(loss: Lost, count: int, compared: int, lasting: LiveLoss) -> str:
    trial = "window" if count == 1 else f"{count} windows{'' if count < _FEWEST_WINDOWS else ' without the worst'}"
    setting = "maxLiveLoss" if loss.limit == getattr(lasting, loss.figure) else "maxQualityLoss"
    words = loss.words(f"the last {trial}", f"of the {compared} published before", setting)
    return f"{words}; mend the clicks or the settings, then say `elastic-ctr rollback --resume`"


def newest_windows(windows: Sequence[Window]) -> tuple[int, WindowQuality] | None:
    """Return the number and the joint figures of the newest windows with some 10,000 clicks. The AUC of one micro-pass is noise."""
    count = _on_trial(windows, _LASTING_CLICKS[-1])
    return (count, together([each.quality for each in windows[:count]])) if count else None


def _on_trial(windows: Sequence[Window], clicks: int) -> int:
    """Return how many of the windows, the newest first, are on trial: as few as have so many clicks."""
    sums = np.cumsum([each.quality.clicks for each in windows[:MOST_ON_TRIAL]])
    count = min(int(np.searchsorted(sums, clicks)) + 1, len(sums))
    few = count and sums[count - 1] < _ABRUPT_CLICKS[-1]
    return min(max(count, _FEWEST_WINDOWS), len(sums)) if few else count
