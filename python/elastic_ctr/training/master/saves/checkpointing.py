"""The save of a pass, from its order to the commit of its checkpoint and version.

One trainer lets the pservers write the tables to their scratch folders (ordered -> begun -> saved), and every pserver uploads its
part (saved -> written). The publisher commits the files (written -> exported -> scored -> done).

A save changes the table and must not be repeated. So the ledger has the order before the first step, and the fact that a trainer
has got it. If a begun save loses its trainer, a recovery follows.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.calendar.schedule import pick_samples
from elastic_ctr.training.master.decisions import DecisionContext, Part
from elastic_ctr.training.master.generations.checkpoint_files import (
    PublishedSample,
    checkpoint_name,
    compare,
    folder_of,
    jobs_of,
    parts_after,
)
from elastic_ctr.training.master.generations.members import JobResults, Lease
from elastic_ctr.training.master.generations.recovery import TRIES
from elastic_ctr.training.master.ledger.rows import PassRow, SaverLease, SaveRow
from elastic_ctr.training.master.saves.compaction import Compaction

log = logging.getLogger(__name__)

_ATTEMPT = "save:"


def is_save(attempt: str) -> bool:
    """True if a lease's attempt is a save, not a task."""
    return attempt.startswith(_ATTEMPT)


def saved_of(save: SaveRow) -> control.SaveResult:
    """Return the report of the save's trainer so far."""
    return control.SaveResult.FromString(save.saved or b"")


def results_of(save: SaveRow) -> list[control.JobResult]:
    """Return the results of the pservers."""
    return list(control.PserverState.FromString(save.written or b"").results)


def published_of(save: SaveRow, dim: int) -> PublishedSample:
    """Return the sample's values in the save's files. Raises PublishRefused if they are not the trained values."""
    saved = saved_of(save)
    keys = np.frombuffer(saved.keys, "<u8")
    pulled = np.frombuffer(saved.values, "<f4").reshape(-1, dim)
    exports = [result for result in results_of(save) if result.written or result.keys]
    return compare(keys, pulled, exports, dim)


class Checkpointing(Part):
    """Owns the saver's lease and the results of the pservers. The save itself is in the ledger."""

    _saver: Lease | None = None
    waits = ""

    def __init__(self, context: DecisionContext) -> None:
        super().__init__(context)
        self._results = JobResults(context.settings.pservers)
        self.compaction = Compaction(context)

    def resume(self, ends: float) -> None:
        """After a restart, extend the saver's lease until `ends` and exclude the master's downtime."""
        self._saver = None
        if (saver := self._ledger.facts.saver) is not None:
            began = saver.began + self._clock() - saver.heard
            self._saver = Lease(saver.trainer, saver.attempt, began, ends, self._config.save_timeout_seconds)

    def serve(self, pservers: int) -> None:
        """Set the number of pservers that upload a save."""
        self._results.serve(pservers)
        self._results.clear()
        self.compaction.serve(pservers)

    def forget(self) -> None:
        """Reset the state for a new generation."""
        self.waits = ""
        self._release()
        self._results.clear()
        self.compaction.forget()

    def _release(self) -> None:
        self._saver = None
        self._ledger.set_facts(saver=None)

    def _open(self) -> tuple[PassRow, SaveRow] | None:
        """Return the current pass and its save, or None."""
        current = self._ledger.passes.current()
        if current is None or current.state != "saving":
            return None
        save = self._ledger.saves.of(current.ordinal)
        return None if save is None else (current, save)

    def stands_on(self, lost: Collection[int]) -> bool:
        """True if versions are `lost` and the save under way is a delta, whose files then cannot be finished, or were lost, too."""
        _, save = self._open() or (None, None)
        return bool(lost) and save is not None and save.kind == "delta" and save.stage != "done"

    def lease(self, current: PassRow, trainer: int) -> control.Task | None:
        """Return the due save or scoring, unless another trainer has its lease. The same trainer gets it again: the answer was lost."""
        save = self._ledger.saves.of(current.ordinal)
        if save is None:
            return None
        if self._saver is None and (
            save.stage in ("ordered", "exported") or (save.keeps_table and save.stage == "begun")
        ):
            self._saver = self._begin(save, trainer)
        if self._saver is None or self._saver.trainer != trainer:
            return None
        samples = [control.Sample(line=s[0], show=s[1], click=s[2]) for s in self.samples_of(current.ordinal)]
        offset = (self._ledger.facts.offset or 0.0) + self._ledger.figures.learning(current.ordinal).shift
        order = control.SaveOrder(version=save.version or 0, samples=samples, offset=offset)
        if save.by_key:
            touched = self._ledger.keys.since(self._ledger.facts.follows)
            order.touched = touched.keys.astype("<u8").tobytes()
            order.touched_counts = touched.counts.astype("<f4").tobytes()
            order.values_kind = self._settings.model.values
        if save.stage != "exported":
            order.steps.extend(control.SaveStep(name=step, folder=folder_of(save, step)) for step in save.steps)
        else:
            published = published_of(save, self._settings.model.embedding_dim)
            order.keys = published.keys.tobytes()
            order.values = published.values.tobytes()
            order.live = saved_of(save).live
            order.values_kind = self._settings.model.values
        return control.Task(
            id=f"{_ATTEMPT}{current.ordinal}",
            attempt=self._saver.attempt,
            phase=control.SCORE if save.stage == "exported" else control.SAVE,
            pass_id=current.id,
            save=order,
        )

    def _begin(self, save: SaveRow, trainer: int) -> Lease:
        now = self._clock()
        with self._ledger:
            attempt = f"{_ATTEMPT}{self._ledger.increment('attempts')}"
            ends = now + self._config.lease_seconds
            saver = Lease(trainer, attempt, now, ends, self._config.save_timeout_seconds)
            self._note(saver)
            if save.stage == "ordered":
                self._ledger.saves.update(save.ordinal, stage="begun")
        return saver

    def _note(self, saver: Lease) -> None:
        lease = SaverLease(trainer=saver.trainer, attempt=saver.attempt, began=saver.began, heard=self._clock())
        self._ledger.set_facts(saver=lease)

    def samples_of(self, ordinal: int) -> list[tuple[str, int, int]]:
        """Return the sample lines of a pass, or of the last pass before it that has any; the same at every call."""
        offered = self._ledger.tasks.samples(self._ledger.tasks.last_sampled(ordinal) or 0)
        return [offered[task][position] for task, position in pick_samples(offered, self._config.samples)]

    def holds(self, attempt: str) -> bool:
        return self._saver is not None and self._saver.attempt == attempt

    def renew(self, trainer: int, ends: float) -> None:
        if self._saver is not None and self._saver.trainer == trainer:
            self._saver.ends = ends
            self._note(self._saver)

    def leave(self, trainer: int, reason: str = "", *, table_unchanged: bool = False) -> str:
        """Release the save of a leaving trainer. With a reason, it counts as a lost lease.

        Return the reason if the table can no longer be trusted, else "". It can if the save has left the `table_unchanged`.
        """
        found = self._open()
        if self._saver is None or self._saver.trainer != trainer:
            return ""
        self._release()
        if found is None:
            return ""
        current, save = found
        if reason:
            self._lost(current, f", the last time: trainer {trainer} left: {reason}", "mend that")
        if save.stage != "begun":
            return ""
        if table_unchanged or save.keeps_table:
            # Another trainer may repeat the steps.
            self._ledger.saves.update(save.ordinal, stage="ordered")
            return ""
        because = f" ({reason})" if reason else ""
        return f"trainer {trainer} left while it saved{because}; what it did to the table is unknown"

    def expire(self, now: float) -> str:
        """End an expired lease. Return the reason if the table can no longer be trusted, else ""."""
        found, saver = self._open(), self._saver
        if saver is None and found is not None and found[1].stage == "begun" and not found[1].keeps_table:
            # A crash or a full disk came between the end of the lease and the recovery.
            return "a save was begun, and no trainer is left that could report how far it came"
        if saver is None or not saver.over(now):
            return ""
        overdue = saver.overdue(now)
        log.warning("trainer %d lost its save%s", saver.trainer, f": {saver.longest:g} s are over" if overdue else "")
        self._release()
        if found is None:
            return ""
        current, save = found
        if overdue:
            return self._failed(current, save, f"it took longer than saveTimeoutSeconds {saver.longest:g}")
        self._lost(current, "", "see in the trainers' logs what ended them, mend it")
        if save.stage == "begun" and save.keeps_table:
            self._ledger.saves.update(save.ordinal, stage="ordered")
        if save.stage != "begun" or save.keeps_table:
            return ""
        return f"trainer {saver.trainer} was lost while it saved; what it did to the table is unknown"

    def _lost(self, current: PassRow, last: str, way_out: str) -> None:
        limit = self._config.max_lost_leases
        if self._ledger.increment("save_lost_leases") >= limit:
            self._schedule.stop(current, f"saving lost its trainer {limit} times in a row{last}: {way_out}")

    def report(self, result: control.TaskResult) -> str:
        """Take the saver's report. Return the reason if the table can no longer be trusted, else ""."""
        found = self._open()
        self._release()
        if found is None:
            raise AssertionError("a saver's lease ends with its save")
        current, save = found
        self.waits = ""
        if result.table_unchanged and save.stage == "begun":
            self._ledger.saves.update(save.ordinal, stage="ordered")
        if result.table_unchanged and result.store_unavailable:
            self.waits = f"the save after pass {current.id} waits for the store: {result.error}"
            return ""
        if result.error:
            return self._failed(current, save, result.error, table_unchanged=result.table_unchanged)
        seconds = ", ".join(f"{name} {taken:.2f} s" for name, taken in sorted(result.save.seconds.items()))
        log.info("pass %s: %s: %s", current.id, "tables saved" if save.stage == "begun" else "sample scored", seconds)
        with self._ledger:
            self._ledger.passes.took(current.ordinal, dict(result.save.seconds))
            self._ledger.set_facts(save_failures=0, save_lost_leases=0)
            if save.stage == "begun":
                saved = result.save.SerializeToString()
                if save.keeps_table:
                    self._count_rows(save, result.save.rows)
                    self._ledger.saves.update(current.ordinal, stage="written", saved=saved, written=b"")
                else:
                    self._ledger.saves.update(current.ordinal, stage="saved", saved=saved)
                self._results.clear()
            else:
                merged = saved_of(save)
                merged.published = result.save.published
                merged.refused = result.save.refused
                # The kind that was scored, because a restarted master may have other settings by now.
                merged.values_kind = result.save.values_kind
                merged.quantised_diff = result.save.quantised_diff
                merged.model_files.extend(result.save.model_files)
                self._ledger.saves.update(current.ordinal, stage="scored", saved=merged.SerializeToString())
        return ""

    def _failed(self, current: PassRow, save: SaveRow, error: str, *, table_unchanged: bool = False) -> str:
        log.warning("save after pass %s failed: %s", current.id, error)
        if self._ledger.increment("save_failures") >= TRIES:
            self._schedule.stop(current, f"saving failed {TRIES} times, the last time: {error}; mend the cause")
        if save.keeps_table and save.stage == "begun":
            self._ledger.saves.update(save.ordinal, stage="ordered")
        # Scoring leaves the table unchanged.
        return (
            "" if table_unchanged or save.keeps_table or save.stage == "exported" else f"a save failed halfway: {error}"
        )

    def _jobs(self) -> list[control.Job]:
        _, save = self._open() or (None, None)
        if save is None or save.stage != "saved" or save.generation != self._generations.present:
            return []
        return jobs_of(save, saved_of(save).keys, self._ledger.saves.chain())

    def jobs(self, index: int) -> list[control.Job]:
        """Return the open jobs of a pserver."""
        return [*self._results.open(index, self._jobs()), *self.compaction.jobs(index)]

    def take(self, index: int, result: control.JobResult) -> None:
        """Take the result of a pserver's job."""
        if self.compaction.has(result.id):
            self.compaction.take(index, result)
            return
        self._results.take(index, result)
        self.gather()

    def gather(self) -> None:
        """Mark the save as written once every pserver has answered. Also called by `tick`, in case the ledger was not writable."""
        found, jobs = self._open(), self._jobs()
        if found is None or not jobs or not self._results.complete(jobs):
            return
        save, results = found[1], self._results.all()
        # Pservers work in parallel: the slowest one determines the time.
        for what in ("checkpoint", "export"):
            taken = [r.seconds for r in results if ("checkpoint" in r.id) == (what == "checkpoint")]
            self._ledger.passes.took(save.ordinal, {f"{what}Upload": max(taken, default=0.0)})
        written = control.PserverState(results=results).SerializeToString()
        with self._ledger:
            self._count_rows(save, saved_of(save).rows, self._results.by_pserver())
            self._ledger.saves.update(save.ordinal, stage="written", written=written)

    def _count_rows(
        self, save: SaveRow, counted: Sequence[int], results: Sequence[Sequence[control.JobResult]] = ()
    ) -> None:
        parts = parts_after(save.steps, self._ledger.facts.table_rows, counted, results)
        self._ledger.saves.set_table(save.ordinal, parts)
        self._ledger.set_facts(table_rows=[part.rows for part in parts])

    # -- commits: the publisher works without the coordinator's lock, so a recovery may have dropped its save ----------

    def due(self) -> tuple[PassRow, SaveRow] | None:
        """Return the current pass and its save if its files are written or scored, else None."""
        found = self._open()
        return None if found is None or found[1].stage not in ("written", "scored") else found

    def _still(self, save: SaveRow) -> PassRow | None:
        """Return the pass of a save, or None if a recovery has dropped the save."""
        found = self._open()
        return None if found is None or found[1] != save else found[0]

    def commit_checkpoint(
        self, save: SaveRow, follows: int | None, base: int | None, mid: Mapping[str, Any] | None = None
    ) -> None:
        """Commit the checkpoint, to which recoveries then return. The checkpoint of a base is committed with its version.

        `mid`: the columns of its pass, if it is a mid-pass checkpoint.
        """
        if save.checkpoint is not None and self._still(save) is not None:
            now = self._clock()
            self._ledger.saves.add_checkpoint(save.checkpoint, save.ordinal, follows, base, now, mid=mid)
            self._ledger.set_facts(table_saved_at=now)

    def end_files(self, save: SaveRow) -> None:
        """Take the next step after a written save's checkpoint: its version is scored, or the pass is done without one."""
        current = self._still(save)
        if current is None:
            return
        if save.kind is not None:
            # The saver of a delta by key has already scored it, with the values that it pulled.
            self._ledger.saves.update(save.ordinal, stage="scored" if save.by_key else "exported")
            return
        self._ledger.saves.update(save.ordinal, stage="done")
        self._schedule.finish(current)

    def commit_version(self, save: SaveRow, keys: int, refused: str, log_on: str = "") -> None:
        """Commit the version as published or refused, and finish the pass. `log_on`: the saved checkpoint of a checkpoint by log that is
        committed with it, if any.
        """
        current = self._still(save)
        if current is None or save.version is None or save.kind is None:
            return
        facts, is_base = self._ledger.facts, save.kind == "base"
        base = save.version if is_base else facts.base
        self._ledger.saves.add_version(
            id=save.version,
            kind=save.kind,
            base=base,
            parent=None if is_base else facts.follows,
            ordinal=save.ordinal,
            state="refused" if refused else "published",
            keys=keys,
            at=self._clock(),
            reason=refused,
        )
        if refused:
            log.error("version %d after pass %s is refused: %s", save.version, current.id, refused)
            if not save.by_key:
                # The table has marked this save's rows as published, but no version has them; only a base will.
                due = f"version {save.version} was refused ({refused}); the next version is a base"
                self._ledger.set_facts(base_due=due)
        else:
            log.info("version %d (%s, %d keys) is published after pass %s", save.version, save.kind, keys, current.id)
            self._ledger.set_facts(follows=save.version, base=base)
            if is_base:
                self._ledger.set_facts(base_due="")
                self.compaction.drop(f"version {save.version} is a base")
                # In one transaction with the version, so no recovery sees one without the other.
                self.commit_checkpoint(save, save.version, save.version)
            self._ledger.passes.update(current.ordinal, version=save.version)
            if log_on:
                name = checkpoint_name(current, save.generation)
                self._ledger.saves.add_checkpoint(
                    name, save.ordinal, save.version, base, self._clock(), stands_on=log_on
                )
                self.compaction.begin(name, save.version, save.ordinal)
            self._ledger.keys.forget()
        self._ledger.saves.update(save.ordinal, stage="done")
        self._schedule.finish(current)
