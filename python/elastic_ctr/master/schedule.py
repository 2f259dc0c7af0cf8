"""One pass after the other: which one is to be looked for, how it begins, how it ends."""

import json
import logging
from collections.abc import Callable

from elastic_ctr.config.data import Data
from elastic_ctr.master.ledger import Ledger
from elastic_ctr.master.ledger_rows import PassRow
from elastic_ctr.master.passes import Pass, passes

log = logging.getLogger(__name__)


class Schedule:
    """The passes that `data` asks for, as far as the ledger has come."""

    def __init__(self, ledger: Ledger, data: Data, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._data = data
        self._clock = clock

    @property
    def finished(self) -> bool:
        """Every pass there will ever be is done."""
        return bool(self._ledger.get("finished", default=False))

    def wanted(self) -> PassRow | None:
        """The pass whose folders are to be looked for now."""
        current = self._ledger.current_pass()
        if current is None and not self.finished:
            coming = self._behind(self._ledger.passes()[-1:])
            if coming is None:
                self._ledger.set_fact("finished", value=True)
                return None
            self._ledger.add_pass(
                coming.ordinal, coming.id, coming.splits, coming.event_time_max, ends_day=coming.ends_day
            )
            current = self._ledger.current_pass()
        return current if current is not None and current.state == "waiting" else None

    def _behind(self, done: list[PassRow]) -> Pass | None:
        """What follows the last of these; None where data.end is."""
        last = done[-1] if done else None
        return next(passes(self._data) if last is None else passes(self._data, last.ordinal, last.splits[-1]), None)

    def begin(self, one: PassRow, files: dict[str, int], ranges: list[tuple[str, int, int]]) -> None:
        """Its hours are complete: files with their bytes, tasks as (path, first byte, byte after the last)."""
        # The ledger's own name is in a task's, for a trainer's scratch may outlive a ledger; and which look this is, for
        # it may hold the lines of a file that was mended since.
        look = self._ledger.increment("looks")
        prefix = f"{self._ledger.get('id', 'ledger')}-{one.ordinal}-{look}"
        named = [(f"{prefix}.{number}", *each) for number, each in enumerate(ranges)]
        self._ledger.fill_pass(one.ordinal, files, named)
        log.info("pass %s: %d files, %d tasks", one.id, len(files), len(named))

    def stop(self, current: PassRow, reason: str) -> None:
        """Until `retry`. `reason` ends with what an operator can do about it."""
        reason = f"{reason}; then run `elastic-ctr pass retry {current.id}` (changed files of the pass retry it, too)"
        self._ledger.set_pass(current.ordinal, state="stopped", reason=reason)
        log.error("pass %s is stopped: %s", current.id, reason)

    def look_again(self, stopped: PassRow) -> None:
        """From the start: its files may have been mended."""
        self._ledger.set_pass(stopped.ordinal, state="waiting", epoch=0, reason="")

    def save_again(self, stopped: PassRow) -> None:
        """What was trained stands; its save is planned anew."""
        self._ledger.set_pass(stopped.ordinal, state="saving", reason="")

    def finish(self, current: PassRow) -> None:
        self._ledger.set_pass(current.ordinal, state="done", done_at=self._clock())
        self._ledger.forget()
        if self.is_last(current):
            self._ledger.set_fact("finished", value=True)
            log.info("all passes up to %s are done", self._data.end)

    def is_last(self, current: PassRow) -> bool:
        """Nothing has begun behind it, and nothing will."""
        known = self._ledger.passes()
        return known[-1].ordinal == current.ordinal and self._behind(known) is None

    def cut_again(self) -> None:
        """data.end may have been moved: the last pass, if it is waited for, has other splits then, or none and is dropped.

        One that has begun is trained to its end, also one that a recovery has forgotten since: others have begun behind it.
        """
        with self._ledger:
            while (known := self._ledger.passes()) and known[-1].state == "waiting":
                *before, last = known
                now = self._behind(before)
                if now is not None:
                    self._cut(last, now)
                    break
                self._ledger.drop_pass(last.ordinal)
                log.info("%s is after data.end %s and is not waited for any more", last.id, self._data.end)
                if self._ledger.current_pass() is None:
                    self._ledger.set_fact("finished", value=True)

    def _cut(self, waiting: PassRow, now: Pass) -> None:
        if now.splits == waiting.splits:
            return
        self._ledger.set_pass(
            waiting.ordinal,
            id=now.id,
            splits=json.dumps(now.splits),
            event_time_max=now.event_time_max,
            ends_day=int(now.ends_day),
        )
        log.info("data.end is %s now: pass %s is %s", self._data.end, waiting.id, now.id)

    def was_extended(self) -> bool:
        """All was done, and data.end has been moved since."""
        return self.finished and self._behind(self._ledger.passes()) is not None

    def go_on(self) -> None:
        self._ledger.set_fact("finished", value=False)
