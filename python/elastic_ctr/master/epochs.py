"""The rounds of a pass: checked, trained `epochs` times, predicted once more.

In the first round all its tasks are converted, validated and predicted; only then is the first one trained, so a pass that is
refused has changed nothing. Then `epochs` rounds of training, one that predicts again with what was learned, then the save,
with no task open.
"""

import logging
from collections.abc import Callable

from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.master.checkpoint_files import describe_refusals
from elastic_ctr.master.ledger import Ledger, PassRow
from elastic_ctr.master.schedule import Schedule
from elastic_ctr.model.evaluation import auc_of_histogram

log = logging.getLogger(__name__)


class EpochRunner:
    """Moves a pass from `checking` to `saving`."""

    def __init__(self, ledger: Ledger, schedule: Schedule, settings: MasterFile, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._schedule = schedule
        self._data = settings.data
        self._config = settings.master
        self._epochs = settings.trainer.epochs
        self._clock = clock

    def step(self, current: PassRow) -> bool:
        """Begin the next round if no task of this one is open. Whether anything more may be due at once."""
        if current.state == "checked":
            self._ledger.next_round(current.ordinal)
            self._ledger.set_pass(current.ordinal, state="training", epoch=1)
            self._ledger.set_fact(f"training-{current.ordinal}", self._clock())
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
        if current.epoch < self._epochs and any(task.records for task in tasks):
            self._ledger.next_round(current.ordinal)
            self._ledger.set_pass(current.ordinal, epoch=current.epoch + 1)
            return False
        return self._end_training(current)

    def _end_check(self, current: PassRow) -> bool:
        counts = self._ledger.counts(current.ordinal)
        lines = counts["records"] + counts["refused"]
        if lines and counts["refused"] / lines > self._data.max_refused_share:
            what = describe_refusals(self._ledger.refusals(current.ordinal))
            worst = self._ledger.worst_file(current.ordinal)
            self._schedule.stop(
                current,
                f"{counts['refused']} of {lines} lines were refused, more than data.maxRefusedShare "
                f"{self._data.max_refused_share:g}: {what}; most of them are in {worst}; "
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
            # One quiet split among others stops nothing.
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
        self._ledger.took(current.ordinal, {"train": now - float(self._ledger.get(f"training-{current.ordinal}", now))})
        if not self._config.evaluate:
            return self._end(current)
        self._ledger.next_round(current.ordinal)
        self._ledger.set_pass(current.ordinal, state="evaluating")
        return True

    def _end(self, current: PassRow) -> bool:
        auc = self._auc(current)
        self._ledger.set_pass(current.ordinal, state="saving", auc=auc)
        log.info("pass %s is trained: AUC %s", current.id, _number(auc))
        return True

    def _auc(self, current: PassRow) -> float | None:
        """Of what the round that has ended predicted."""
        histograms = self._ledger.histograms(current.ordinal)
        return None if histograms is None else auc_of_histogram(*histograms)


def _number(auc: float | None) -> str:
    return "-" if auc is None else f"{auc:.4f}"
