"""Whether a version may take the place of the one before it: a training that has come apart is not published.

What a version of pass t is worth on fresh data is known only after the next pass. Its quality after training is known when
it is published, over records that the model has just learned: too good if anything, so a value that is far too low is
certain. It is compared with the version that answers now, over the first records which that one had not learned. Where
every pass makes a version these are the same records.
"""

import math

from elastic_ctr.config.roles import QualityLoss
from elastic_ctr.master.checkpoint_files import PublishRefused
from elastic_ctr.master.ledger_quality import LiveQuality
from elastic_ctr.master.ledger_rows import PassRow
from elastic_ctr.versions.manifest import Quality

# Standard errors that a difference must be above its limit: chance alone goes there less than once in a thousand times.
_CHANCE = 3.0


def refuse_worse(current: PassRow, after: Quality | None, live: LiveQuality | None, limits: QualityLoss) -> None:
    """Raises PublishRefused. Nothing is compared without a published version, records or clicks."""
    if after is None or live is None:
        return
    of_live = f"of version {live.version} over pass {live.pass_id} before training"
    if after.auc is not None and live.quality.auc is not None:
        chance = _CHANCE * math.hypot(auc_error(after), auc_error(live.quality))
        if live.quality.auc - after.auc > limits.auc + chance:
            raise PublishRefused(
                f"AUC {after.auc:.4f} of pass {current.id} after training is lower than the {live.quality.auc:.4f} {of_live} by more "
                f"than maxQualityLoss.auc {limits.auc:g} and {chance:.4f} for chance; mend the data or lower the learning rates of "
                "model.table and model.dense, or raise master.config.maxQualityLoss.auc"
            )
    if after.calibration is not None and live.quality.calibration is not None:
        chance = _CHANCE * math.hypot(calibration_error(after), calibration_error(live.quality))
        if abs(after.calibration - 1) - abs(live.quality.calibration - 1) > limits.calibration + chance:
            raise PublishRefused(
                f"calibration {after.calibration:.4f} of pass {current.id} after training is farther from 1 than the "
                f"{live.quality.calibration:.4f} {of_live} by more than maxQualityLoss.calibration {limits.calibration:g} and "
                f"{chance:.4f} for chance; mend the data or lower the learning rates of model.table and model.dense, or raise "
                "master.config.maxQualityLoss.calibration"
            )


def auc_error(quality: Quality) -> float:
    """Bound of an AUC's standard error: its variance is at most AUC (1 - AUC) / min(clicks, shows without click) (van Dantzig
    1951), and so at most 1/4 of that, which few impressions with an AUC of 1 cannot hide. 0 without an AUC.
    """
    return 0.0 if quality.auc is None else 0.5 / math.sqrt(min(quality.clicks, quality.shows - quality.clicks))


def calibration_error(quality: Quality) -> float:
    """Bound of a calibration's standard error: that of so many clicks, if each impression were clicked by chance alone."""
    return 0.0 if quality.calibration is None else quality.calibration / math.sqrt(quality.clicks)
