"""The epochs of a pass, from its check to its save, and the figures of each epoch."""

import logging
from collections.abc import Sequence

from elastic_ctr.store.versions.manifest import Quality
from elastic_ctr.training.master.decisions import Part
from elastic_ctr.training.master.generations.checkpoint_files import describe_refusals
from elastic_ctr.training.master.ledger.rows import Learning, PassRow
from elastic_ctr.training.master.passes import learning
from elastic_ctr.training.master.passes.tasks import GROUP_ROWS, PHASES, holdout_of, shift_before, size_of_epoch
from elastic_ctr.training.model.evaluation import quality_of_histogram
from elastic_ctr.training.model.grouped_auc import folded, grouped_auc

log = logging.getLogger(__name__)

# The fewest rows over which a column counts as vanished: more than data.maxMissingShare of them are empty, and less than half were.
_ROWS_TO_VANISH = 100
_MOSTLY = 0.5
# The fewest lines of a stream over which the share of refused ones counts: of a small pass one line would be a large share.
_LEAST_LINES = 1000


class EpochRunner(Part):
    """Moves a pass from `checking` to `saving`: check, one or several epochs of training, and a final prediction.

    The first pass is analyzed before that if features need statistics. The master merges and pins them outside the coordinator's
    lock, and compares later passes with them there; the pass waits for both.

    The check converts, validates and predicts all tasks of the pass before the first one is trained, so a refused pass leaves the
    table unchanged. The epochs of training follow, then the final prediction, then the save, with no task open. With `data.holdout`
    and `epochs: auto`, the held-out records are predicted after each epoch to decide on the next one.
    """

    def step(self, current: PassRow) -> bool:
        """Begin the next epoch if no task of this one is open. Return True if another step may be due at once."""
        if current.state == "checked":
            # Also after a recovery, which begins the epochs again.
            before = self._ledger.figures.learning(current.ordinal)
            self._ledger.figures.set_learning(
                current.ordinal, Learning(losses=before.losses[:1], holdout=self._holdout(current))
            )
            self._ledger.passes.update(current.ordinal, training_at=self._clock())
            self._begin_epoch(current, 1)
            return True
        if current.state not in PHASES:
            return False
        if current.state == "analyzing" and self._ledger.facts.statistics:
            # The statistics were given in the values file at a restart.
            self._ledger.begin_check(current.ordinal)
            return False
        tasks = self._ledger.tasks.of(current.ordinal)
        if any(task.state != "done" for task in tasks):
            return False
        if current.state == "analyzing":
            return self._end_analysis(current)
        if current.state == "checking":
            return self._ledger.tasks.collected_records(current.ordinal) is None and self._end_check(current)
        if current.state == "evaluating":
            if self._stops_by_held_out(current) and self._goes_on(current, self._with_loss(current)):
                self._begin_epoch(current, current.epoch + 1)
                return True
            return self._end(current)
        unknown = (*self._ledger.figures.learning(current.ordinal).losses, *[None] * current.epoch)[: current.epoch + 1]
        if not self._stops_by_held_out(current) and self._goes_on(current, unknown):
            self._begin_epoch(current, current.epoch + 1)
            return False
        now = self._clock()
        self._ledger.passes.update(current.ordinal, trained_at=now)
        self._ledger.passes.took(current.ordinal, {"train": now - (current.training_at or now)})
        evaluates = self._config.evaluate and not self._settings.data.is_stream
        if not evaluates and not self._holdout(current):
            return self._end(current)
        self._ledger.tasks.next_epoch(current.ordinal)
        self._ledger.passes.update(current.ordinal, state="evaluating")
        return True

    def forget_first_values(self, stopped: PassRow) -> None:
        """Forget the statistics and the offset that came from a stopped pass, unless a version, a checkpoint or another pass uses them: its
        files may have changed.
        """
        if any(row["pass"] for row in self._ledger.saves.checkpoints()) or self._ledger.saves.versions():
            return
        if self._ledger.facts.statistics_of == stopped.ordinal:
            self._ledger.set_facts(statistics="", statistics_of=0)
        others = [each for each in self._ledger.passes.all() if each.ordinal != stopped.ordinal]
        if self._ledger.facts.started_from is None and not any(each.epoch for each in others):
            self._ledger.set_facts(offset=None)

    def _holdout(self, current: PassRow) -> float:
        return holdout_of(self._ledger, self._settings, current)

    def _stops_by_held_out(self, current: PassRow) -> bool:
        """True if the validation loss decides after each epoch on the next one."""
        auto = self._settings.trainer.epochs == "auto" and not self._settings.data.is_stream
        return self._holdout(current) > 0 and auto

    def _begin_epoch(self, current: PassRow, epoch: int) -> None:
        records, learned = self._ledger.tasks.records(current.ordinal), self._ledger.figures.learning(current.ordinal)
        size = size_of_epoch(self._ledger, self._settings, current, records, epoch)
        batch_sizes = (*learned.batch_sizes[: epoch - 1], size)
        self._ledger.figures.set_learning(current.ordinal, learned.model_copy(update={"batch_sizes": batch_sizes}))
        self._ledger.tasks.next_epoch(current.ordinal)
        self._ledger.passes.update(current.ordinal, state="training", epoch=epoch)
        log.info("pass %s: epoch %d over %d records in batches of %d", current.id, epoch, records, size)

    def _with_loss(self, current: PassRow) -> Sequence[float | None]:
        """Set and return the losses with that of the epoch evaluated now, calibrated as its version would be."""
        learned, found = (
            self._ledger.figures.learning(current.ordinal),
            self._quality(current, self._calibrating_shift(current)),
        )
        losses = (*learned.losses[: current.epoch], None if found is None else found.logloss)
        self._ledger.figures.set_learning(current.ordinal, learned.model_copy(update={"losses": losses}))
        return losses

    def _goes_on(self, current: PassRow, losses: Sequence[float | None]) -> bool:
        records, clicks = (
            self._ledger.tasks.records(current.ordinal),
            self._ledger.passes.counts(current.ordinal)["clicks"],
        )
        return records > 0 and learning.goes_on(
            self._settings.trainer, records, losses, clicks=clicks, stream=self._settings.data.is_stream
        )

    def _end_analysis(self, current: PassRow) -> bool:
        records = self._ledger.tasks.collected_records(current.ordinal) or 0
        if self._stopped_for_refusals(current, records):
            return False
        if records:
            return False  # the master merges the statistics now
            # There are no rows to analyze, so the next pass is analyzed.
        self._ledger.tasks.drop_collected(current.ordinal)
        return self._end_check(current)

    def _stopped_for_refusals(self, current: PassRow, records: int) -> bool:
        refused = self._ledger.passes.counts(current.ordinal)["refused"]
        lines, limit = records + refused, self._settings.data.max_refused_share
        if not lines or refused / lines <= limit:
            return False
        before, way_out = 0, "mend the lines or raise the share"
        if self._settings.data.is_stream:
            refused, lines, before = self._with_passes_before(current, refused, lines)
            if refused / max(lines, _LEAST_LINES) <= limit:
                return False
            way_out = "what a stream has stays as it is: raise the share"
        among = f" in this pass and {before} before it" if before else ""
        what = describe_refusals(self._ledger.tasks.refusals(current.ordinal))
        worst = self._ledger.tasks.worst_file(current.ordinal)
        self._schedule.stop(
            current,
            f"{refused} of {lines} lines{among} were refused, more than data.maxRefusedShare {limit:g}: {what}; "
            f"most of them are in {worst}; nothing was trained: {way_out}",
        )
        return True

    def _with_passes_before(self, current: PassRow, refused: int, lines: int) -> tuple[int, int, int]:
        """Return refused and all lines, extended by preceding passes until there are enough, and the number of these passes."""
        counts = self._ledger.passes.counts_by_pass(0, current.ordinal - 1)
        before = 0
        for ordinal in sorted(counts, reverse=True):
            if lines >= _LEAST_LINES:
                break
            refused += counts[ordinal]["refused"]
            lines += counts[ordinal]["records"] + counts[ordinal]["refused"]
            before += 1
        return refused, lines, before

    def _stopped_for_vanished_columns(self, current: PassRow) -> bool:
        drift = self._ledger.figures.drifts(current.ordinal).get(current.ordinal)
        limit = self._settings.data.max_missing_share
        if drift is None or drift.rows < _ROWS_TO_VANISH:
            return False
        gone = [each for each in drift.columns if each.missing > limit and each.pinned_missing < _MOSTLY]
        if not gone:
            return False
        what = ", ".join(f"{each.column} ({each.pinned_missing:.1%} before)" for each in gone)
        self._schedule.stop(
            current,
            f"columns have vanished: more than data.maxMissingShare {limit:g} of {drift.rows} rows have no value in {what}; nothing "
            "was trained: mend the files or raise the share",
        )
        return True

    def _end_check(self, current: PassRow) -> bool:
        counts = self._ledger.passes.counts(current.ordinal)
        if self._stopped_for_refusals(current, counts["records"]) or self._stopped_for_vanished_columns(current):
            return False
        skipped, of_them = (
            self._ledger.tasks.skipped(current.ordinal),
            self._ledger.tasks.refusals(current.ordinal).get("skipped", (0, []))[0],
        )
        if of_them < skipped:
            log.warning(
                "pass %s: no record begins at %d of the %d offsets that are to be skipped",
                current.id,
                skipped - of_them,
                skipped,
            )
        sampled = self._ledger.tasks.last_sampled(current.ordinal)
        # A trainer offers sample lines of every task that has any.
        if counts["records"] and sampled != current.ordinal:
            none, other = _without_samples(counts, of_rows=self._settings.features is not None)
            if sampled is None:
                self._schedule.stop(
                    current,
                    f"{none}, nor was there one before: no version could be checked, and nothing was trained; mend the files, "
                    f"or begin another model with other {other}",
                )
                return False
            # A single pass without sample lines does not stop the training.
            log.warning("pass %s: %s: its version is checked with lines of before", current.id, none)
        quality = self._quality(current)
        self._ledger.figures.set_quality(current.ordinal, "before", quality)
        losses = (None if quality is None else quality.logloss,)
        self._ledger.figures.set_learning(current.ordinal, Learning(losses=losses, holdout=self._holdout(current)))
        # The first clicks of a stream may arrive after its first window.
        said = counts["clicks"] if self._settings.data.is_stream else counts["shows"]
        if self._ledger.facts.offset is None and said:
            # A model that an earlier release trained without an offset keeps 0.
            trained = any(each.epoch for each in self._ledger.passes.all())
            offset = 0.0 if trained else learning.log_odds(counts["clicks"], counts["shows"])
            self._ledger.set_facts(offset=offset)
        self._ledger.passes.update(current.ordinal, state="checked")
        found = f"{counts['records']} records, {counts['refused']} refused, before training {_figures(quality)}"
        log.info("pass %s is checked: %s", current.id, found)
        return True

    def _end(self, current: PassRow) -> bool:
        if self._settings.data.is_stream and not self._holdout(current):
            # Each batch of a micro-pass is predicted before it is learned, so there is no separate prediction before training.
            self._ledger.figures.set_quality(
                current.ordinal, "before", self._quality(current, shift_before(self._ledger, current))
            )
        quality = self._quality(current, self._calibrate(current))
        self._ledger.figures.set_quality(current.ordinal, "after", quality)
        self._ledger.passes.update(current.ordinal, state="saving")
        log.info("pass %s is trained: %s", current.id, _figures(quality))
        return True

    def _calibrate(self, current: PassRow) -> float:
        """Set and return the shift of the pass's version: the last steps leave its logits slightly too high or too low."""
        shift = self._calibrating_shift(current)
        learned = self._ledger.figures.learning(current.ordinal)
        self._ledger.figures.set_learning(current.ordinal, learned.model_copy(update={"shift": shift}))
        return shift

    def _calibrating_shift(self, current: PassRow) -> float:
        """Return the shift that calibrates the version; the previous version's if nothing was predicted after training."""
        histograms, before = self._ledger.tasks.histograms(current.ordinal), shift_before(self._ledger, current)
        if current.state != "evaluating" or histograms is None or not histograms[0].sum() + histograms[1].sum():
            return before
        return learning.calibrating_shift(*histograms, before=before)

    def _quality(self, current: PassRow, shift: float = 0.0) -> Quality | None:
        """Return the quality of the last epoch's predictions with `shift` added to their logits, or None."""
        histograms = self._ledger.tasks.histograms(current.ordinal)
        found = None if histograms is None else quality_of_histogram(*histograms, shift=shift)
        return found if found is None else found.model_copy(update=self._by_group(current))

    def _by_group(self, current: PassRow) -> dict[str, float | int | None]:
        """Return the figures by `data.group` for a Quality; {} if a task of the pass was predicted without groups."""
        slot = self._settings.data.group
        if not slot or not self._ledger.figures.is_grouped(current.ordinal, slot):
            return {}
        gauc, groups = grouped_auc(folded(self._ledger.figures.groups(current.ordinal, slot), GROUP_ROWS))
        return {"gauc": gauc, "groups": groups}


def _without_samples(counts: dict[str, int], *, of_rows: bool) -> tuple[str, str]:
    """Return the message that no record of a pass can be predicted, and the name of the setting that determines this."""
    if of_rows:
        return (
            f"none of {counts['records']} rows has a key of a feature and is short enough for a prediction",
            "features",
        )
    return (
        f"none of {counts['records']} lines has a key of data.slots and is short enough for a prediction "
        f"({counts['ignored']} features are of other slots, {counts['padding']} are the padding key)"
    ), "data.slots"


def _figures(quality: Quality | None) -> str:
    if quality is None:
        return "AUC -"
    auc, calibration = ("-" if each is None else f"{each:.4f}" for each in (quality.auc, quality.calibration))
    return f"AUC {auc}, logloss {quality.logloss:.4f}, calibration {calibration}"
