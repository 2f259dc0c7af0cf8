"""A whole training over a real table that is written, compacted and expired meanwhile."""

from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.config.training_settings import MasterConfig
from elastic_ctr.sources.tables.table_address import open_table
from elastic_ctr.sources.tables.table_log import CommitsGone, TableRefused
from elastic_ctr.store.backends import StoreError
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.training_status import status
from elastic_ctr.training.master.work.table_finder import TableFinder
from training.master.test_crashes import Mortal, killed_after
from training.master.world import data_of, features_of
from written_tables import KINDS, WrittenDelta, WrittenTable, ids_in


class TableWorld(Mortal):
    """Reads a real table; its masters are started again when they are killed."""

    reads_further = True

    def __init__(self, folder: Path, table: WrittenTable, **data: Any) -> None:
        self.table = table
        self.error: StoreError | None = None
        given = {"source": {"url": table.url}, "start": "earliest", "end": None, "format": "parquet", "label": "click"}
        self.given = {**given, "slots": None, "sleepSeconds": 0.1, **data}
        super().__init__(folder, data=data_of(**self.given), features=features_of(), config=MasterConfig())

    def start_master(self) -> None:
        super().start_master()
        self.finder = TableFinder(open_table(self.data.source), self.settings, lambda: self.now)

    def again(self, **data: Any) -> None:
        """A master with other settings of the data."""
        self.data = data_of(**{**self.given, **data})
        self.start_master()

    def find_hours(self) -> None:
        wanted = self.coordinator.found.wants_hours()
        if wanted is not None:
            # As the master's loop does.
            try:
                self.finder.find(self.coordinator, wanted)
            except StoreError as failed:
                self.error = failed
            else:
                self.error = None

    def done(self, passes: int) -> None:
        self.until(lambda: sum(each.state == "done" for each in self.ledger.passes.all()) >= passes)

    def waits(self) -> None:
        """Go on until the next pass has looked for its commits in vain."""
        for _ in range(5):
            self.turn()
        self.until(lambda: self.finder.waits_for != "" and self.state() == "waiting")

    def state(self) -> str:
        current = self.ledger.passes.current()
        return "" if current is None else current.state

    def fails(self) -> StoreError:
        """Go on until a look fails, and return why."""
        self.until(lambda: self.error is not None)
        assert self.error is not None
        return self.error

    def commits(self) -> list[tuple[str, ...]]:
        return [each.splits for each in self.ledger.passes.all() if each.splits]

    def ids(self) -> Counter[int]:
        """The ids of the rows in the table of parameters, each as often as it was trained."""
        parts = {task.id: [task.path, *(each.path for each in task.further)] for task in self.tasks if task.path}
        found = Counter[int]()
        for task, times in self.trained().items():
            for _ in range(times):
                found.update(ids_in(self.table.url, parts[task]))
        return found

    def notices(self) -> tuple[str, ...]:
        shown = status(self.coordinator, "").table
        assert shown is not None
        return shown.notices


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrittenTable:
    return KINDS[request.param](tmp_path, monkeypatch)


@pytest.fixture
def world(tmp_path: Path, table: WrittenTable) -> Callable[..., TableWorld]:
    return lambda **data: TableWorld(tmp_path, table, **data)


def once(*ids: int) -> Counter[int]:
    return Counter(ids)


def test_the_first_pass_has_the_whole_table_and_each_further_one_a_commit(
    table: WrittenTable, world: Callable[..., TableWorld]
) -> None:
    table.append(1)
    last = table.append(2)
    one = world()
    one.done(1)
    further = [table.append(3), table.append(4)]
    one.done(3)

    assert one.ids() == once(1, 2, 3, 4)
    assert one.commits() == [(last,), *((each,) for each in further)]


def test_a_pass_has_as_many_commits_as_there_are_up_to_the_bound(
    table: WrittenTable, world: Callable[..., TableWorld]
) -> None:
    first = table.append(1)
    one = world(start=first, splitsPerPass=3)
    one.waits()
    assert one.finder.waits_for == f"commits of {table.url} after {first}"
    further = [table.append(each) for each in (2, 3, 4, 5)]
    one.done(2)

    assert one.ids() == once(2, 3, 4, 5)
    assert one.commits() == [tuple(further[:3]), tuple(further[3:])]


def test_with_latest_rows_that_came_before_are_not_trained(
    table: WrittenTable, world: Callable[..., TableWorld]
) -> None:
    table.append(1)
    one = world(start="latest")
    one.waits()
    table.append(2)
    one.done(1)

    assert one.ids() == once(2)


def test_a_compaction_between_commits_and_one_of_rows_under_way_train_nothing_twice(
    table: WrittenTable, world: Callable[..., TableWorld]
) -> None:
    table.append(1)
    one = world()
    one.done(1)
    table.append(2)
    one.until_phase(control.TRAIN)
    table.append(3)
    table.compact()
    one.done(3)
    table.compact()
    one.waits()
    table.append(4)
    one.done(4)

    assert one.ids() == once(1, 2, 3, 4)


def test_every_row_is_trained_once_wherever_the_master_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kill in count(1, 6):
        folder = tmp_path / str(kill)
        folder.mkdir()
        table = WrittenDelta(folder, monkeypatch)
        table.append(1)
        one = TableWorld(folder, table, splitsPerPass=2)
        with killed_after(kill, monkeypatch) as made:
            one.done(1)
            for each in (2, 3, 4):
                table.append(each)
            table.compact()
            one.done(3)
        table.append(5)
        one.done(4)

        assert one.ids() == once(1, 2, 3, 4, 5), f"killed after commit {kill}"
        one.ledger.close()
        if len(made) < kill:
            break
    assert kill > 20


def test_a_recovery_trains_the_commits_again_that_its_checkpoint_lacks_even_after_they_expired(
    table: WrittenTable, world: Callable[..., TableWorld]
) -> None:
    table.append(1)
    one = world()
    one.done(1)
    table.append(2)
    one.until_phase(control.TRAIN)
    table.append(3)
    table.compact()
    one.pservers[0].restart()
    one.done(2)
    table.append(4)
    one.done(4)

    assert one.ids() == once(1, 2, 3, 4)
    assert one.coordinator.generation == 2


def test_a_stopped_pass_begins_again_with_the_files_that_it_had(
    table: WrittenTable, world: Callable[..., TableWorld]
) -> None:
    table.append(1)
    one = world()
    one.done(1)
    table.append(2)
    one.until_phase(control.TRAIN)
    current = one.ledger.passes.current()
    assert current is not None
    one.coordinator._schedule.stop(current, "a test stops it")
    table.compact()
    table.expire()
    one.start_master()
    one.done(2)

    assert one.ids() == once(1, 2)


def test_a_commit_that_changes_rows_is_waited_at_after_the_ones_before_and_can_be_left_out(
    table: WrittenTable, world: Callable[..., TableWorld]
) -> None:
    first = table.append(1)
    one = world(start=first, splitsPerPass=9)
    table.append(2, 3, 4)
    changed = table.delete("id = 3")
    one.done(1)
    refused = one.fails()
    assert f"commit {changed} of {table.url}" in str(refused)
    assert "deleted or changed rows and added 1 files" in str(refused)
    one.turn()
    assert one.error is refused, "the reason stays while the look pauses"

    table.append(5)
    one.again(splitsPerPass=9, start=changed)
    one.done(2)

    assert one.ids() == once(2, 3, 4, 5)
    assert f"and {changed} of {table.url} were left out, as data.start orders" in one.notices()[-1]


def test_commits_that_change_rows_are_left_out_with_a_notice_if_the_settings_have_it_so(
    table: WrittenTable, world: Callable[..., TableWorld]
) -> None:
    first = table.append(1)
    one = world(start=first, skipChanges=True)
    table.append(2, 3, 4)
    table.delete("id = 3")
    table.append(5)
    one.done(2)

    assert one.ids() == once(2, 3, 4, 5)
    [notice] = one.notices()
    assert "deleted or changed rows; its files are left out" in notice


def test_rows_that_were_deleted_stay_learned_with_a_notice(
    table: WrittenTable, world: Callable[..., TableWorld]
) -> None:
    first = table.append(1)
    one = world(start=first)
    table.append(2, 3)
    one.done(1)
    table.delete("id > 1")
    table.append(4)
    one.done(2)

    assert one.ids() == once(2, 3, 4)
    assert one.notices()[-1].endswith("deleted or changed rows; the model keeps what it learned of them")


def test_expired_commits_stop_training_until_the_operator_gives_them_up(
    table: WrittenTable, world: Callable[..., TableWorld]
) -> None:
    first = table.append(1)
    one = world(start=first)
    table.append(2)
    one.done(1)
    table.append(3)
    table.append(4)
    table.expire()
    gone = one.fails()
    assert isinstance(gone, CommitsGone)

    start = str(gone).split('"')[1]
    one.again(start=start)
    table.append(5)
    one.done(2)
    one.waits()

    # What expires snapshots by pyiceberg takes the parent from the oldest kept one, whose rows are left out then, too.
    assert one.ids() in (once(2, 4, 5), once(2, 5))
    assert "were left out, as data.start orders" in one.notices()[-1]


def test_another_start_is_refused_while_nothing_is_gone(table: WrittenTable, world: Callable[..., TableWorld]) -> None:
    first, second = table.append(1), table.append(2)
    one = world(start=first)
    one.done(1)
    one.again(start=second)

    assert f"data.start was {first} when passes began and is {second} now" in str(one.fails())


def test_training_ends_at_the_last_commit_that_is_wanted_and_goes_on_if_there_are_more(
    table: WrittenTable, world: Callable[..., TableWorld]
) -> None:
    first, last = table.append(1), table.append(2)
    table.compact()
    after = table.append(3)
    one = world(start=first, end=last)
    one.finish()
    assert one.ids() == once(2)

    one.again(start=first, end=after)
    one.start_training()
    one.finish()
    assert one.ids() == once(2, 3)


def test_training_ends_at_a_compaction_without_another_pass(
    table: WrittenTable, world: Callable[..., TableWorld]
) -> None:
    first = table.append(1)
    table.append(2)
    table.compact()
    last = open_table(
        data_of(source={"url": table.url}, slots=None, format="parquet", label="click", start="latest", end=None).source
    ).newest()
    one = world(start=first, end=last)
    one.finish()

    assert one.ids() == once(2)
    assert len(one.ledger.passes.all()) == 1


def test_an_end_that_passes_are_behind_is_refused(table: WrittenTable, world: Callable[..., TableWorld]) -> None:
    first, second = table.append(1), table.append(2)
    one = world(start=second, end=first)

    refused = one.fails()
    assert isinstance(refused, TableRefused)
    assert f"data.end {first} is no commit of {table.url} behind {second}" in str(refused)
