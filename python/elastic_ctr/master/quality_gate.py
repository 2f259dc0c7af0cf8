"""Whether a version may take the place of the one before it: a training that has come apart is not published.

What a version of pass t is worth on fresh data is known only after the next pass. Its quality after training is known when
it is published, over records that the model has just learned: too good if anything, so a value that is far too low is
certain. It is compared with the version that answers now, over the first records which that one had not learned. Where
every pass makes a version these are the same records. They no longer are after a refusal: data that has become harder would
then refuse each further version, so after a few in a row the pass's own figures before training count instead.
"""

import math

from elastic_ctr.config.roles import QualityLoss
from elastic_ctr.master.checkpoint_files import PublishRefused
from elastic_ctr.master.ledger_quality import Expected
from elastic_ctr.master.ledger_rows import PassRow
from elastic_ctr.versions.manifest import Quality

# Standard errors that a difference must be above its limit: chance alone goes there less than once in a thousand times.
_CHANCE = 3.0
MOST_REFUSED = 3
"""Versions in a row that are refused by a comparison with the published one."""


def refuse_worse(current: PassRow, after: Quality | None, expected: Expected | None, limits: QualityLoss) -> None:
    """Raises PublishRefused. Nothing is compared without a published version, records or clicks."""
    if after is None or expected is None:
        return
    if after.auc is not None and expected.quality.auc is not None:
        chance = _CHANCE * math.hypot(auc_error(after), auc_error(expected.quality))
        if expected.quality.auc - after.auc > limits.auc + chance:
            raise PublishRefused(
                f"AUC {after.auc:.4f} of pass {current.id} after training is lower than the {expected.quality.auc:.4f} {expected.of} by more "
                f"than maxQualityLoss.auc {limits.auc:g} and {chance:.4f} for chance; mend the data or lower the learning rates of "
                "model.table and model.dense, or raise master.config.maxQualityLoss.auc"
            )
    if after.calibration is not None and expected.quality.calibration is not None:
        chance = _CHANCE * math.hypot(calibration_error(after), calibration_error(expected.quality))
        if abs(after.calibration - 1) - abs(expected.quality.calibration - 1) > limits.calibration + chance:
            raise PublishRefused(
                f"calibration {after.calibration:.4f} of pass {current.id} after training is farther from 1 than the "
                f"{expected.quality.calibration:.4f} {expected.of} by more than maxQualityLoss.calibration {limits.calibration:g} and "
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
