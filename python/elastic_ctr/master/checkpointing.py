"""The save of a pass, from its order until every file is written: what the table holds is brought to the pservers' scratch by
one trainer (ordered -> begun -> saved), and from there to the store by every parent (saved -> written). What follows is in
commits.py.

Saves change the table and are never repeated: the intent stands in the ledger before the first step, and that its steps were
handed out before anybody can take one. One that was begun and is nobody's any more is a recovery.
"""

import json
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master.checkpoint_files import Published, checkpoint_name, compare, folder_of, jobs_of
from elastic_ctr.master.ledger import Ledger, PassRow, SaveRow
from elastic_ctr.master.members import JobResults
from elastic_ctr.master.recovery import TRIES, Generations
from elastic_ctr.master.schedule import Pass, SavePlan, Schedule, pick_samples, save_plan
from elastic_ctr.master.store_queries import Pending, StoreFacts
from elastic_ctr.master.tasks import Lease
from elastic_ctr.store import StoreError
from elastic_ctr.versions.manifest import next_version
from elastic_ctr.versions.refusals import refused_below

log = logging.getLogger(__name__)

Due = tuple[PassRow, SaveRow, list[control.JobResult], control.SaveResult]
_ATTEMPT = "save:"


def is_save(attempt: str) -> bool:
    """Whether a lease is of a save, not of a task."""
    return attempt.startswith(_ATTEMPT)


def saved_of(save: SaveRow) -> control.SaveResult:
    """What its trainer has reported so far."""
    return control.SaveResult.FromString(save.result or b"")


def results_of(save: SaveRow) -> list[control.JobResult]:
    """What the pservers' parents have written for it."""
    raw = save.jobs.get("results", "")
    return list(control.PserverState.FromString(bytes.fromhex(raw)).results)


def published_of(save: SaveRow, dim: int) -> Published:
    """What its files say of the sample's keys. Raises PublishRefused if that is not what was trained."""
    saved = saved_of(save)
    keys = np.frombuffer(saved.keys, "<u8")
    pulled = np.frombuffer(saved.values, "<f4").reshape(-1, dim)
    exports = [result for result in results_of(save) if result.written or result.keys]
    return compare(keys, pulled, exports, dim)


class Checkpointing:
    """Owns the saver's lease and what the pservers have answered; the save itself is in the ledger."""

    def __init__(
        self,
        ledger: Ledger,
        generations: Generations,
        schedule: Schedule,
        settings: MasterFile,
        store: StoreFacts,
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._generations = generations
        self._schedule = schedule
        self._config = settings.master
        self._longest = self._config.save_timeout_seconds
        self._dim = settings.model.embedding_dim
        self._store = store
        self._clock = clock
        self._saver: Lease | None = None
        self.waits = ""
        self._answers = JobResults(settings.pservers)

    def resume(self, ends: float) -> None:
        """After a restart the saver's lease goes on until `ends`, whatever it was; the time that we were away does not count."""
        self._saver = None
        saver = self._ledger.get("saver")
        if saver is not None:
            now = self._clock()
            # An older master did not take note of all this.
            began = saver.get("began", now) + now - saver.get("heard", now)
            self._saver = Lease(saver["trainer"], saver["attempt"], began, ends, self._longest)
            found = self._open()
            if found is not None and found[1].stage == "ordered":
                # Handed out by a master of before, which did not take note of that.
                self._ledger.set_save(found[1].ordinal, stage="begun")

    def serve(self, pservers: int) -> None:
        """From now on so many of them write what is saved."""
        self._answers = JobResults(pservers)

    def start_over(self) -> None:
        """Somebody has mended the cause: all tries are there again."""
        for count in ("save_failures", "save_losses"):
            self._ledger.set_fact(count, 0)

    def forget(self) -> None:
        """Another generation begins."""
        self.waits = ""
        self._release()
        self._answers.clear()

    def _release(self) -> None:
        self._saver = None
        self._ledger.set_fact("saver", None)

    def _open(self) -> tuple[PassRow, SaveRow] | None:
        """The present pass and its save."""
        current = self._ledger.current_pass()
        save = None if current is None or current.state != "saving" else self._ledger.save_of(current.ordinal)
        return None if current is None or save is None else (current, save)

    def stands_on(self, lost: Collection[int]) -> bool:
        """Whether the save under way is a delta of versions that are lost: its files cannot be finished, or were lost too."""
        found = self._open()
        return bool(lost) and found is not None and found[1].kind == "delta" and found[1].stage != "done"

    # -- ordered ---------------------------------------------------------------------------------------------------

    def order(self, current: PassRow) -> bool:
        """Plan what is saved after a pass, once. Whether the pass is done with that."""
        if self._ledger.save_of(current.ordinal) is not None:
            return False
        plan, version = self._plan(current), None
        if plan.kind is not None:
            try:
                published, refused = self._store.versions(), self._store.refusals()
            except Pending:
                return False
            except StoreError as failed:
                log.warning("the save after pass %s waits for the store: %s", current.id, failed)
                return False
            if self.refused_versions(refused) or self.lost_versions(published):
                plan = self._plan(current)
            version = self._next_version(published)
        steps = plan.steps
        whole = [row["pass"] for row in self._ledger.checkpoints() if not row["mid"]]
        if current.ordinal in whole and plan.kind == "delta":
            # A recovery came back to this very checkpoint: only its version is still missing.
            steps = tuple(step for step in steps if step != "checkpoint")
        if not steps:
            self._schedule.finish(current)
            return True
        generation = self._generations.present
        checkpoint = checkpoint_name(current, generation) if "checkpoint" in steps else None
        self._ledger.begin_save(
            SaveRow(
                current.ordinal,
                generation,
                "ordered",
                steps,
                plan.kind,
                version,
                checkpoint,
                None,
                {},
                self._clock(),
            )
        )
        return False

    def _plan(self, current: PassRow) -> SavePlan:
        return save_plan(
            Pass(current.ordinal, current.id, current.splits, current.event_time_max, current.ends_day),
            self._config,
            # An hour without records still saves what the hours before it left unsaved.
            records=self._ledger.unpublished(),
            has_base=bool(self._ledger.chain()),
            base_due=bool(self._ledger.get("base_due", default=False)),
            is_last=self._schedule.is_last(current),
        )

    def lost_versions(self, published: Collection[int]) -> list[int]:
        """What the next delta would stand on and the store (which holds `published`) has lost: then the next version is a base."""
        lost = [version for version in self._ledger.chain() if version not in published]
        if lost and not self._ledger.get("base_due", default=False):
            log.warning(
                "version %d is no longer in the store, and no delta can stand on it: the next version is a base",
                lost[0],
            )
            self._ledger.set_fact(
                "base_due", f"version {lost[0]} is no longer in the store; the next version is a base"
            )
        return lost

    def refused_versions(self, refused: Mapping[int, str]) -> bool:
        """Whether the next delta would stand on a version that cube-transfer refused: then the next version is a base."""
        chain = self._ledger.chain()
        wrong = refused_below(chain[0], chain[-1], refused) if chain else None
        if wrong is None:
            return False
        if not self._ledger.get("base_due", default=False):
            due = f"version {wrong} was refused ({refused[wrong]}), and no delta can stand on it; the next version is a base"
            log.warning("%s", due)
            self._ledger.set_fact("base_due", due)
        return True

    def _next_version(self, published: Collection[int]) -> int:
        known = [*published, *(v["id"] for v in self._ledger.versions())]
        version = next_version(self._clock(), [*known, int(self._ledger.get("last_version", 0))])
        self._ledger.set_fact("last_version", version)
        return version

    # -- the saver -------------------------------------------------------------------------------------------------

    def lease(self, current: PassRow, trainer: int) -> control.Task | None:
        """The save or the scoring that is due, if nobody else is at it. Whoever has it and asks again has not heard the answer."""
        save = self._ledger.save_of(current.ordinal)
        if save is None or not self._free_for(trainer, save):
            return None
        saver = self._saver or self._begin(save, trainer)
        samples = [control.Sample(line=s[0], show=s[1], click=s[2]) for s in self.samples_of(current.ordinal)]
        order = control.SaveOrder(version=save.version or 0, samples=samples)
        if save.stage != "exported":
            order.steps.extend(control.SaveStep(name=step, folder=folder_of(save, step)) for step in save.steps)
        else:
            published = published_of(save, self._dim)
            order.keys = published.keys.tobytes()
            order.values = published.values.tobytes()
            order.live = saved_of(save).live
        return control.Task(
            id=f"{_ATTEMPT}{current.ordinal}",
            attempt=saver.attempt,
            phase=control.SCORE if save.stage == "exported" else control.SAVE,
            pass_id=current.id,
            save=order,
        )

    def _free_for(self, trainer: int, save: SaveRow) -> bool:
        if self._saver is not None:
            return self._saver.trainer == trainer
        return save.stage in ("ordered", "exported")

    def _begin(self, save: SaveRow, trainer: int) -> Lease:
        now = self._clock()
        with self._ledger:
            attempt = f"{_ATTEMPT}{self._ledger.increment('attempts')}"
            saver = Lease(trainer, attempt, now, now + self._config.lease_seconds, self._longest)
            self._note(saver)
            if save.stage == "ordered":
                self._ledger.set_save(save.ordinal, stage="begun")
        self._saver = saver
        return saver

    def _note(self, saver: Lease) -> None:
        """For a master that is started in our place."""
        known = {"trainer": saver.trainer, "attempt": saver.attempt, "began": saver.began, "heard": self._clock()}
        self._ledger.set_fact("saver", known)

    def samples_of(self, ordinal: int) -> list[tuple[str, int, int]]:
        """The sample lines of a pass, or of the last one before it that has any: always the same, whoever asks."""
        offered = self._ledger.samples(ordinal)
        while not offered and ordinal > 1:
            ordinal -= 1
            offered = self._ledger.samples(ordinal)
        return [offered[task][position] for task, position in pick_samples(offered, self._config.samples)]

    def holds(self, attempt: str) -> bool:
        return self._saver is not None and self._saver.attempt == attempt

    def renew(self, trainer: int, ends: float) -> None:
        if self._saver is not None and self._saver.trainer == trainer:
            self._saver.ends = ends
            self._note(self._saver)

    def leave(self, trainer: int, reason: str = "", *, table_unchanged: bool = False) -> str:
        """A trainer that leaves gives its save back: in order, which counts nothing, or for a reason, and then it is a loss.
        Why the table can no longer be trusted; empty if it can, as where the save is `table_unchanged`.
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
        if table_unchanged:
            self._mark_unchanged(save)
            return ""
        told = f" ({reason})" if reason else ""
        return f"trainer {trainer} left while it saved{told}; what it did to the table is unknown"

    def _mark_unchanged(self, save: SaveRow) -> None:
        """As if it had never been handed out: another one may take its steps."""
        self._ledger.set_save(save.ordinal, stage="ordered")

    def expire(self, now: float) -> str:
        """Why the table can no longer be trusted; empty if it can."""
        found = self._open()
        if self._saver is None and found is not None and found[1].stage == "begun":
            # A crash or a full disk came between what ended the lease and what should have followed.
            return "a save was begun, and nobody is left who could say how far it came"
        if self._saver is None or not self._saver.over(now):
            return ""
        trainer, overdue = self._saver.trainer, self._saver.overdue(now)
        log.warning("trainer %d is lost to its save%s", trainer, f": {self._longest:g} s are over" if overdue else "")
        self._release()
        if found is None:
            return ""
        current, save = found
        if overdue:
            return self._failed(current, save, f"it took longer than saveTimeoutSeconds {self._longest:g}")
        self._lost(current, "", "see in the trainers' logs what ended them, mend it")
        if save.stage != "begun":
            return ""
        return f"trainer {trainer} was lost while it saved; what it did to the table is unknown"

    def _lost(self, current: PassRow, last: str, way_out: str) -> None:
        limit = self._config.max_lost_leases
        if self._ledger.increment("save_losses") >= limit:
            self._schedule.stop(current, f"saving lost its trainer {limit} times in a row{last}: {way_out}")

    def report(self, result: control.TaskResult) -> str:
        """From the saver. Why the table can no longer be trusted; empty if it can."""
        current = self._ledger.current_pass()
        save = None if current is None else self._ledger.save_of(current.ordinal)
        self._release()
        if current is None or save is None:
            raise AssertionError("a saver's lease ends with its save")
        self.waits = ""
        if result.table_unchanged and save.stage == "begun":
            self._mark_unchanged(save)
        if result.table_unchanged and result.store_unavailable:
            self.waits = f"the save after pass {current.id} waits for the store: {result.error}"
            return ""
        if result.error:
            return self._failed(current, save, result.error, table_unchanged=result.table_unchanged)
        seconds = ", ".join(f"{name} {taken:.2f} s" for name, taken in sorted(result.save.seconds.items()))
        log.info("pass %s: %s: %s", current.id, "tables saved" if save.stage == "begun" else "sample scored", seconds)
        with self._ledger:
            self._ledger.took(current.ordinal, dict(result.save.seconds))
            self.start_over()
            if save.stage == "begun":
                self._ledger.set_save(current.ordinal, stage="saved", result=result.save.SerializeToString())
                self._answers.clear()
            else:
                merged = saved_of(save)
                merged.published = result.save.published
                merged.refused = result.save.refused
                merged.model_files.extend(result.save.model_files)
                self._ledger.set_save(current.ordinal, stage="scored", result=merged.SerializeToString())
        return ""

    def _failed(self, current: PassRow, save: SaveRow, error: str, *, table_unchanged: bool = False) -> str:
        log.warning("save after pass %s failed: %s", current.id, error)
        if self._ledger.increment("save_failures") >= TRIES:
            self._schedule.stop(current, f"saving failed {TRIES} times, the last time: {error}; mend the cause")
        # Scoring changes nothing in the table.
        return "" if table_unchanged or save.stage == "exported" else f"a save failed halfway: {error}"

    # -- written ---------------------------------------------------------------------------------------------------

    def _jobs(self) -> list[control.Job]:
        found = self._open()
        if found is None or found[1].stage != "saved" or found[1].generation != self._generations.present:
            return []
        return jobs_of(found[1], saved_of(found[1]).keys, self._ledger.chain())

    def jobs(self, index: int) -> list[control.Job]:
        """What a pserver's parent still has to write."""
        return self._answers.open(index, self._jobs())

    def take(self, index: int, result: control.JobResult) -> None:
        """What a parent has written."""
        self._answers.take(index, result)
        self.gather()

    def gather(self) -> None:
        """When every parent has answered, the files are written. The clock asks again, should the ledger not have taken it."""
        found, jobs = self._open(), self._jobs()
        if found is None or not jobs or not self._answers.complete(jobs):
            return
        save = found[1]
        results = self._answers.all()
        # Pservers work side by side: the slowest one is what was waited for.
        for what in ("checkpoint", "export"):
            taken = [r.seconds for r in results if ("checkpoint" in r.id) == (what == "checkpoint")]
            self._ledger.took(save.ordinal, {f"{what}Upload": max(taken, default=0.0)})
        answered = {"results": control.PserverState(results=results).SerializeToString().hex()}
        self._ledger.set_save(save.ordinal, stage="written", jobs=json.dumps(answered))

    # -- committed: each of these asks first whether its save stands, since the publisher works without the lock ----

    def due(self) -> Due | None:
        """A save whose files are written or scored, with what its parents and its trainer have reported."""
        current = self._ledger.current_pass()
        if current is None or current.state != "saving":
            return None
        save = self._ledger.save_of(current.ordinal)
        if save is None or save.stage not in ("written", "scored"):
            return None
        return current, save, results_of(save), saved_of(save)

    def _still(self, save: SaveRow) -> PassRow | None:
        """The pass of a save, unless a recovery has dropped it while the publisher was at the store."""
        now = self._ledger.save_of(save.ordinal)
        current = self._ledger.current_pass()
        if current is None or now is None or current.ordinal != save.ordinal:
            return None
        same = (now.generation, now.version, now.stage) == (save.generation, save.version, save.stage)
        return current if same else None

    def commit_checkpoint(
        self, save: SaveRow, follows: int | None, base: int | None, mid: Mapping[str, Any] | None = None
    ) -> None:
        """From now on recoveries come back to it. The checkpoint of a base counts with the version alone.

        `mid`: where its pass stood, if it was made in the middle of one.
        """
        if save.checkpoint is not None and self._still(save) is not None:
            self._ledger.add_checkpoint(save.checkpoint, save.ordinal, follows, base, self._clock(), mid=mid)

    def end_files(self, save: SaveRow) -> None:
        """The checkpoint of a written save stands; its version is scored next, or the pass is done without one."""
        current = self._still(save)
        if current is None:
            return
        if save.kind is not None:
            self._ledger.set_save(save.ordinal, stage="exported")
            return
        self._ledger.set_save(save.ordinal, stage="done")
        self._schedule.finish(current)

    def commit_version(self, save: SaveRow, keys: int, refused: str) -> None:
        """The version is published, or refused with a reason; the pass is done."""
        current = self._still(save)
        if current is None or save.version is None or save.kind is None:
            return
        is_base = save.kind == "base"
        base = save.version if is_base else int(self._ledger.get("base"))
        parent = None if is_base else self._ledger.get("follows")
        state = "refused" if refused else "published"
        self._ledger.add_version(
            save.version, save.kind, base, parent, save.ordinal, state, keys, self._clock(), refused
        )
        if refused:
            log.error("version %d after pass %s is refused: %s", save.version, current.id, refused)
            # What this save marked as published is in no version: only a base catches up.
            self._ledger.set_fact(
                "base_due", f"version {save.version} was refused ({refused}); the next version is a base"
            )
        else:
            log.info("version %d (%s, %d keys) is published after pass %s", save.version, save.kind, keys, current.id)
            self._ledger.set_fact("follows", save.version)
            self._ledger.set_fact("base", base)
            if is_base:
                self._ledger.set_fact("base_due", value=False)
                # In one transaction with the version it follows: no recovery sees one without the other.
                self.commit_checkpoint(save, save.version, save.version)
            self._ledger.set_pass(current.ordinal, version=save.version)
        self._ledger.set_save(save.ordinal, stage="done")
        self._schedule.finish(current)
