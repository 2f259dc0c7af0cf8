"""Whether a version may take the place of the one before it: a training that has come apart is not published.

What a version of pass t is worth on fresh data is known only after the next pass. Its quality after training is known when
it is published, over records that the model has just learned: too good if anything, so a value that is far too low is
certain. It is compared with the version that answers now, over the first records which that one had not learned. Where
every pass makes a version these are the same records. They no longer are after a refusal: data that has become harder would
then refuse each further version, so after a few in a row the pass's own figures before training count instead.

The windows of a stream come every second, so a version that went live is judged by those behind it as well: where they are lastingly
worse, publishing is held.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from elastic_ctr.config.roles import LiveLoss, QualityLoss
from elastic_ctr.master.checkpoint_files import PublishRefused
from elastic_ctr.master.ledger_quality import COMPARED_WINDOWS, Expected, Window, together
from elastic_ctr.master.ledger_rows import PassRow
from elastic_ctr.versions.manifest import Quality

# Standard errors that a difference must be above its limit: chance alone goes there less than once in a thousand times.
_CHANCE = 3.0
MOST_REFUSED = 3
"""Versions in a row that are refused by a comparison with the published one."""


TRIAL, LAST = 10, 3
"""Windows in a row that are worse, and how many of them, the newest, still are."""


class Lost(NamedTuple):
    """A figure that has become worse by more than its limit and chance."""

    figure: Literal["auc", "calibration"]
    now: float
    before: float
    limit: float
    chance: float


def lost(now: Quality, before: Quality, limits: QualityLoss | LiveLoss) -> Lost | None:
    """The first figure that is worse; None, too, where one of them is undefined."""
    if now.auc is not None and before.auc is not None:
        chance = _CHANCE * math.hypot(auc_error(now), auc_error(before))
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
    name, worse = ("AUC", "lower") if found.figure == "auc" else ("calibration", "farther from 1")
    raise PublishRefused(
        f"{name} {found.now:.4f} of pass {current.id} after training is {worse} than the {found.before:.4f} {expected.of} by more "
        f"than maxQualityLoss.{found.figure} {found.limit:g} and {found.chance:.4f} for chance; mend the data or lower the learning "
        f"rates of model.table and model.dense, or raise master.config.maxQualityLoss.{found.figure}"
    )


def without_worst(windows: Sequence[Quality]) -> Quality:
    """Of several windows as one, each figure without the window that has the worst: one odd window says nothing that lasts."""
    auc = together(sorted(windows, key=lambda each: each.auc or 0.0)[1:])
    calibration = together(sorted(windows, key=lambda each: abs((each.calibration or 0.0) - 1))[:-1])
    return auc.model_copy(update={"calibration": calibration.calibration})


class LastingLoss(NamedTuple):
    """Why publishing is held, and the published versions that the windows speak against: the oldest and the newest, or None."""

    reason: str
    suspects: tuple[int, int] | None


def lasting_loss(windows: Sequence[Window], limits: LiveLoss) -> LastingLoss | None:
    """Whether the newest windows are lastingly worse than those published before them; `windows` are in a row, the newest first, and each
    has an AUC and a calibration.

    A window tells what the pass before it has made, so that pass's version is the oldest suspect.
    """
    trial = windows[:TRIAL]
    before = [each for each in windows[TRIAL:] if each.version is not None][:COMPARED_WINDOWS]
    if len(trial) < TRIAL or not before:
        return None
    reference = together([each.quality for each in before])
    qualities = [each.quality for each in trial]
    found = [lost(without_worst(qualities[:span]), reference, limits) for span in (TRIAL, LAST)]
    if (loss := found[0]) is None or found[1] is None:
        return None
    suspects = [each.version for each in windows if each.version is not None and each.ordinal >= trial[-1].ordinal - 1]
    name, worse = ("AUC", "lower") if loss.figure == "auc" else ("calibration", "farther from 1")
    return LastingLoss(
        f"{name} {loss.now:.4f} of the last {TRIAL} windows without the worst is {worse} than the {loss.before:.4f} of the {len(before)} published before "
        f"by more than maxLiveLoss.{loss.figure} {loss.limit:g} and {loss.chance:.4f} for chance; mend the clicks or the "
        "settings, then say `elastic-ctr rollback --resume`",
        (min(suspects), max(suspects)) if suspects else None,
    )


def auc_error(quality: Quality) -> float:
    """Bound of an AUC's standard error: its variance is at most AUC (1 - AUC) / min(clicks, shows without click) (van Dantzig
    1951), and so at most 1/4 of that, which few impressions with an AUC of 1 cannot hide. 0 without an AUC.
    """
    return 0.0 if quality.auc is None else 0.5 / math.sqrt(min(quality.clicks, quality.shows - quality.clicks))


def calibration_error(quality: Quality) -> float:
    """Bound of a calibration's standard error: that of so many clicks, if each impression were clicked by chance alone."""
    return 0.0 if quality.calibration is None else quality.calibration / math.sqrt(quality.clicks)
