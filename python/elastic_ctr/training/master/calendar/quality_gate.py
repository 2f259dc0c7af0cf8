"""Whether a version may take the place of the one before it: a training that has come apart is not published.

What a version of pass t is worth on fresh data is known only after the next pass. Its quality after training is known when
it is published, over records that the model has just learned: too good if anything, so a value that is far too low is
certain. It is compared with the version that answers now, over the first records which that one had not learned. Where
every pass makes a version these are the same records. They no longer are after a refusal: data that has become harder would
then refuse each further version, so after a few in a row the pass's own figures before training count instead.

The windows of a stream come every second, so a version that went live is judged by those behind it as well: where they are worse,
publishing is held. A model follows other clicks within seconds, poisoned ones too, and its figures recover then: so a large loss counts at
once.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from elastic_ctr.config.roles import LiveLoss, QualityLoss
from elastic_ctr.store.versions.manifest import Quality
from elastic_ctr.training.master.generations.checkpoint_files import PublishRefused
from elastic_ctr.training.master.ledger.figures import Compared, Expected, Window, together
from elastic_ctr.training.master.ledger.rows import PassRow, WindowQuality
from elastic_ctr.training.master.ledger.samples import Sample

AnyLoss = TypeVar("AnyLoss", QualityLoss, LiveLoss)
# Standard errors that a difference must be above its limit: chance alone goes there less than once in a thousand times.
_CHANCE = 3.0
# Clicks, and shows without a click, of a pass whose logloss is compared with that of a constant. The rate of fewer is chance.
_FEWEST_OF_EACH = 100
# A model of clicks that nothing foretells is some percent worse than their rate, which it does not know before: its last steps follow
# single records, and a window of a stream has another rate than the one before. A model that has come apart is worse by half and more.
_WORSE_THAN_CONSTANT = 1.1
# Rows of a sample; of fewer, all may well have the same keys under a vocabulary.
_FEWEST_ROWS = 10
_ROUNDING = 4 * float(np.finfo(np.float32).eps)
_NOTHING_LEARNED = (
    "it would rank nothing; look at the scale of the numbers (`elastic-ctr analyze` names those far from 1), or lower the learning rates "
    "of model.table and model.dense"
)
MOST_REFUSED = 3
"""Versions in a row that are refused by a comparison with the published one."""


# After live, the newest windows are on trial: as few as have so many clicks, or else all that are looked at. An abrupt loss shows in
# few clicks, by the limits of a version before live; a smaller one that lasts needs more of them.
_ABRUPT_CLICKS, _LASTING_CLICKS = (100, 1000), (3000, 10_000)
# A trial of fewer clicks than the larger number of an abrupt loss has at least so many windows. Of so many, the worst is left out.
_FEWEST_WINDOWS = 3
MOST_ON_TRIAL = 50
"""Windows on trial, at most. cube-transfer must remember a version from before them."""
MOST_COMPARED = 100
"""Windows that those on trial are compared with, at most."""
LOOKED_AT = MOST_ON_TRIAL + MOST_COMPARED
"""Windows that are read at most: those on trial, and those that they are compared with."""


def auc_error(quality: Compared) -> float:
    """Bound of an AUC's standard error: its variance is at most AUC (1 - AUC) / min(clicks, shows without click) (van Dantzig
    1951), and so at most 1/4 of that, which few impressions with an AUC of 1 cannot hide. 0 without an AUC.
    """
    return 0.0 if quality.auc is None else 0.5 / math.sqrt(min(quality.clicks, quality.shows - quality.clicks))


def auc_deviation(quality: Compared) -> float:
    """An AUC's standard error, of many clicks: Hanley and McNeil 1982. Closer than the bound of `auc_error`, and 0 for an AUC of 1."""
    if quality.auc is None:
        return 0.0
    auc, clicks, others = quality.auc, quality.clicks, max(quality.shows - quality.clicks, 1)
    above, below = auc / (2 - auc) - auc**2, 2 * auc**2 / (1 + auc) - auc**2
    return math.sqrt((auc * (1 - auc) + (clicks - 1) * above + (others - 1) * below) / (clicks * others))


def calibration_error(quality: Compared) -> float:
    """Bound of a calibration's standard error: that of so many clicks, if each impression were clicked by chance alone."""
    return 0.0 if quality.calibration is None else quality.calibration / math.sqrt(quality.clicks)


class Lost(NamedTuple):
    """A figure that has become worse by more than its limit and chance."""

    figure: Literal["auc", "calibration"]
    now: float
    before: float
    limit: float
    chance: float

    def words(self, now: str, before: str, setting: str) -> str:
        """The part of a sentence that has the figures: `now` and `before` say what they are of."""
        name, worse = ("AUC", "lower") if self.figure == "auc" else ("calibration", "farther from 1")
        return (
            f"{name} {self.now:.4f} of {now} is {worse} than the {self.before:.4f} {before} by more than "
            f"{setting}.{self.figure} {self.limit:g} and {self.chance:.4f} for chance"
        )


def abrupt_loss(before_live: QualityLoss, after_live: LiveLoss) -> QualityLoss:
    """The limits of an abrupt loss: those of a version before live, unless those after live are wider, as where they say never."""
    wider = {name: max(getattr(before_live, name), getattr(after_live, name)) for name in ("auc", "calibration")}
    return before_live.model_copy(update=wider)


def limits_of(limits: AnyLoss, late_clicks: bool) -> AnyLoss:
    """With late clicks the AUC alone is compared. A window has its own impressions, and clicks of earlier ones: its calibration follows
    the traffic, for as long as clicks take to come.
    """
    return limits.model_copy(update={"calibration": math.inf}) if late_clicks else limits


def lost(
    now: Compared, before: Compared, limits: QualityLoss | LiveLoss, error: Callable[[Compared], float] = auc_error
) -> Lost | None:
    """The first figure that is worse; None, too, where one of them is undefined. `error`: the standard error of an AUC."""
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
    """Raises PublishRefused. Nothing is compared without a published version, records or clicks."""
    if after is None or expected is None or (found := lost(after, expected.quality, limits)) is None:
        return
    raise PublishRefused(
        f"{found.words(f'pass {current.id} after training', expected.of, 'maxQualityLoss')}; mend the data or lower the learning rates of "
        f"model.table and model.dense, or raise master.config.maxQualityLoss.{found.figure}"
    )


def refuse_worse_than_constant(current: PassRow, after: Quality | None, *, late_clicks: bool) -> None:
    """Raises PublishRefused where one probability for all would have been better. With late clicks the rate of a window is not that of
    its impressions, so nothing is said.
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
    """Raises PublishRefused where a version answers the same for different rows, of which some were clicked."""
    rows, clicks = {line for line, _, _ in samples}, sum(click for _, _, click in samples)
    if len(rows) < _FEWEST_ROWS or not 0 < clicks < sum(show for _, show, _ in samples):
        return
    if np.ptp(scores) <= _ROUNDING * scores.max():
        raise PublishRefused(
            f"the model of pass {current.id} answers {scores.max():.6g} for each of {len(rows)} different rows: {_NOTHING_LEARNED}"
        )


def without_worst(windows: Sequence[WindowQuality]) -> WindowQuality:
    """Of several windows as one; of three or more each figure without the window that has the worst: one odd window says little."""
    if len(windows) < _FEWEST_WINDOWS:
        return together(windows)
    auc = together(sorted(windows, key=lambda each: each.auc)[1:])
    calibration = together(sorted(windows, key=lambda each: abs(each.calibration - 1))[:-1])
    return auc._replace(calibration=calibration.calibration)


class LossAfterLive(NamedTuple):
    """Why publishing is held, and the published versions that the windows speak against: the oldest and the newest, or None."""

    reason: str
    suspects: tuple[int, int] | None


def loss_after_live(
    windows: Sequence[Window], abrupt: QualityLoss, lasting: LiveLoss, earlier: Sequence[WindowQuality] = ()
) -> LossAfterLive | None:
    """Whether the newest windows are worse than those published before them; `windows` are in a row, the newest first. `earlier` ones, of
    the model that this one began with, stand before them and are never on trial.

    A window tells what the pass before it has made, so that pass's version is the oldest suspect.
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
    """The newest windows of some ten thousand clicks as one, and how many they are. A micro-pass alone is small, and its AUC is noise."""
    count = _on_trial(windows, _LASTING_CLICKS[-1])
    return (count, together([each.quality for each in windows[:count]])) if count else None


def _on_trial(windows: Sequence[Window], clicks: int) -> int:
    """How many of the windows, the newest first, are on trial: as few as have so many clicks."""
    sums = np.cumsum([each.quality.clicks for each in windows[:MOST_ON_TRIAL]])
    count = min(int(np.searchsorted(sums, clicks)) + 1, len(sums))
    few = count and sums[count - 1] < _ABRUPT_CLICKS[-1]
    return min(max(count, _FEWEST_WINDOWS), len(sums)) if few else count
