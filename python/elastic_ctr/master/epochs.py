"""The epochs of a pass: checked, trained `epochs` times, predicted once more.

In the check all tasks of the pass are converted, validated and predicted before the first one is trained, so a refused pass
leaves the table unchanged. Then come `epochs` epochs of training, one that predicts again, and the save, with no task open.
"""

import logging

from elastic_ctr.master.checkpoint_files import describe_refusals
from elastic_ctr.master.ledger import PassRow
from elastic_ctr.master.schedule import Part
from elastic_ctr.model.evaluation import auc_of_histogram

log = logging.getLogger(__name__)


class EpochRunner(Part):
    """Moves a pass from `checking` to `saving`."""

    def step(self, current: PassRow) -> bool:
        """Begin the next epoch if no task of this one is open. Whether anything more may be due at once."""
        if current.state == "checked":
            self._ledger.next_epoch(current.ordinal)
            self._ledger.set_pass(current.ordinal, state="training", epoch=1, training_at=self._clock())
            return True
        if current.state not in ("checking", "training", "evaluating"):
            return False
        tasks = self._ledger.tasks(current.ordinal)
        if any(task.state != "done" for task in tasks):
            return False
        if current.state == "checking":
            return self._end_check(current)
        if current.state == "evaluating":
            return self._end(current)
        if current.epoch < self._settings.trainer.epochs and any(task.records for task in tasks):
            self._ledger.next_epoch(current.ordinal)
            self._ledger.set_pass(current.ordinal, epoch=current.epoch + 1)
            return False
        return self._end_training(current)

    def _end_check(self, current: PassRow) -> bool:
        counts = self._ledger.counts(current.ordinal)
        lines = counts["records"] + counts["refused"]
        if lines and counts["refused"] / lines > (limit := self._settings.data.max_refused_share):
            what = describe_refusals(self._ledger.refusals(current.ordinal))
            worst = self._ledger.worst_file(current.ordinal)
            self._schedule.stop(
                current,
                f"{counts['refused']} of {lines} lines were refused, more than data.maxRefusedShare "
                f"{limit:g}: {what}; most of them are in {worst}; "
                "nothing was trained: mend the lines or raise the share",
            )
            return False
        # A trainer offers a sample of every task that has such a line.
        if counts["records"] and not self._ledger.samples(current.ordinal):
            none = (
                f"none of {counts['records']} lines has a key of data.slots and is short enough for a prediction "
                f"({counts['ignored']} features are of other slots, {counts['padding']} are the padding key)"
            )
            if not self._ledger.has_samples(current.ordinal):
                self._schedule.stop(
                    current,
                    f"{none}, nor was there one before: no version could be checked, and nothing was trained; mend the lines, "
                    "or begin another model with other data.slots",
                )
                return False
            # One pass without samples among others does not stop the training.
            log.warning("pass %s: %s: its version is checked with lines of before", current.id, none)
        auc = self._auc(current)
        self._ledger.set_pass(current.ordinal, state="checked", auc_before=auc)
        log.info(
            "pass %s is checked: %d records, %d refused, AUC before training %s",
            current.id,
            counts["records"],
            counts["refused"],
            _number(auc),
        )
        return True

    def _end_training(self, current: PassRow) -> bool:
        now = self._clock()
        self._ledger.set_pass(current.ordinal, trained_at=now)
        self._ledger.took(current.ordinal, {"train": now - (current.training_at or now)})
        if not self._config.evaluate:
            return self._end(current)
        self._ledger.next_epoch(current.ordinal)
        self._ledger.set_pass(current.ordinal, state="evaluating")
        return True

    def _end(self, current: PassRow) -> bool:
        auc = self._auc(current)
        self._ledger.set_pass(current.ordinal, state="saving", auc=auc)
        log.info("pass %s is trained: AUC %s", current.id, _number(auc))
        return True

    def _auc(self, current: PassRow) -> float | None:
        """Of the predictions of the last epoch."""
        histograms = self._ledger.histograms(current.ordinal)
        return None if histograms is None else auc_of_histogram(*histograms)


def _number(auc: float | None) -> str:
    return "-" if auc is None else f"{auc:.4f}"
