"""The passes of a table: a Schedule by commits instead of hours."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from elastic_ctr.config.data import Data
from elastic_ctr.sources.tables.table_log import TableCommit, TableRefused
from elastic_ctr.training.master.calendar.schedule import Schedule
from elastic_ctr.training.master.ledger.rows import Pass, PassRow

log = logging.getLogger(__name__)


@dataclass
class TableWindow:
    """The commits of a pass. `last` is the last commit that was looked at, and `notices` are sentences on those left out."""

    last: str
    commits: list[TableCommit] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)

    @property
    def files(self) -> dict[str, int]:
        return {path: size for commit in self.commits for path, size in commit.files.items()}


def table_window(url: str, commits: Iterable[TableCommit], after: str, data: Data) -> TableWindow:
    """Return the first commits with new rows, at most data.splitsPerPass. Raises TableRefused for one whose new rows are not known.

    Commits before a refused one are trained first.
    """
    found = TableWindow(after)
    for commit in commits:
        if refused := refused_commit(url, commit, data):
            if found.commits:
                break
            raise TableRefused(refused)
        if commit.removes:
            what = "its files are left out" if commit.files else "the model keeps what it learned of them"
            found.notices.append(f"{_named(url, commit)} deleted or changed rows; {what}")
        elif commit.files:
            found.commits.append(commit)
        found.last = commit.id
        if commit.id == data.end or len(found.commits) == data.splits_per_pass:
            break
    return found


def refused_commit(url: str, commit: TableCommit, data: Data) -> str:
    """Return why training cannot go on with a commit, and the way out; "" if it can."""
    named, leave_out = _named(url, commit), f'set data.start to "{commit.id}" to go on behind it without its rows'
    if commit.refused:
        return f"{named} cannot be trained, because {commit.refused}; rewrite the table before training begins, or {leave_out}"
    if commit.removes and commit.files and not data.skip_changes:
        return (
            f"{named} deleted or changed rows and added {len(commit.files)} files, in which rows of before may be, too; {leave_out}, or set "
            "data.skipChanges to true to leave out all such commits"
        )
    return ""


def _named(url: str, commit: TableCommit) -> str:
    return f"commit {commit.id} of {url}" + (f" ({commit.operation})" if commit.operation else "")


def passes_of_commits(commits: Sequence[str], most: int) -> Iterator[Pass]:
    """Yield the passes of commits with new rows, each with `most` at most, as training would make them of commits that are there."""
    for ordinal, first in enumerate(range(0, len(commits), most), start=1):
        yield _pass(ordinal, tuple(commits[first : first + most]), 0)


def _pass(ordinal: int, commits: tuple[str, ...], ends: int) -> Pass:
    return Pass(ordinal, f"table/{ordinal:08d}", commits, ends, ends_day=False)


class TableSchedule(Schedule):
    """All its state is in the ledger: a pass keeps its commits and files, so it is never cut again."""

    _also_retries = ""

    def _behind(self, done: list[PassRow]) -> Pass | None:
        place = self._ledger.facts.table
        if self._data.end is not None and place is not None and place.commit == self._data.end:
            return None
        ordinal = done[-1].ordinal + 1 if done else 1
        return _pass(ordinal, (), int(self._clock()))

    def cut_again(self) -> bool:
        return self.finished and self._behind(self._ledger.passes.all()) is not None

    def end(self, one: PassRow) -> None:
        """End training: the waiting pass got no commit up to data.end."""
        self._ledger.passes.drop(one.ordinal)
        self._ledger.set_facts(finished=True)
        log.info("all commits up to %s are done", self._data.end)
