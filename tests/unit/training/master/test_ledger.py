import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from elastic_ctr.runtime.sqlite_file import NewerSchema
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.ledger_file import LedgerDamaged, naming_damage
from elastic_ctr.training.master.ledger.rows import Facts, Pass, SaveRow, packed, unpacked
from elastic_ctr.training.model.evaluation import BUCKETS

COUNTS = {"records": 10, "shows": 20, "clicks": 5, "ignored": 1, "padding": 2}


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.db")


def histograms(count: float) -> tuple["np.ndarray[tuple[int], np.dtype[np.float64]]", ...]:
    found = np.zeros(BUCKETS)
    found[7] = count
    return found, 2 * found


def a_pass(ledger: Ledger, ordinal: int, tasks: int = 2, state: str = "training") -> None:
    ledger.passes.add(
        Pass(ordinal, f"20200401/{ordinal:02d}", (f"20200401/{ordinal:02d}",), 100 * ordinal, ends_day=False)
    )
    ledger.passes.fill(ordinal, {"a": 10}, [(f"{ordinal}-{n}", "a", n, 0) for n in range(tasks)])
    for task in ledger.tasks.of(ordinal):
        ledger.tasks.checked(task, COUNTS, [("no_colon", 3, ["1 0 17"])], [("1:a", 2, 1)], histograms(1))  # type: ignore[arg-type]
    ledger.passes.update(ordinal, state=state, epoch=1)


def train(ledger: Ledger, ordinal: int, *, done: int = 2) -> None:
    for task in ledger.tasks.of(ordinal)[:done]:
        ledger.tasks.trained(task, histograms(4))  # type: ignore[arg-type]


# -- transactions ------------------------------------------------------------------------------------------------------


def test_facts_that_were_read_in_a_transaction_are_forgotten_with_it(ledger: Ledger) -> None:
    ledger.set_facts(looks=1)

    def halfway() -> None:
        with ledger:
            ledger.set_facts(looks=2)
            assert ledger.facts.looks == 2
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        halfway()

    assert ledger.facts.looks == 1
    assert ledger.increment("looks") == 2


def test_rows_that_were_read_in_a_transaction_are_forgotten_with_it(ledger: Ledger) -> None:
    a_pass(ledger, 1)
    ledger.saves.begin(SaveRow(1, 1, ("touched",), "delta", 7, None, 1.0))
    current, save = ledger.passes.current(), ledger.saves.of(1)

    def halfway() -> None:
        with ledger:
            ledger.passes.update(1, state="saving")
            ledger.saves.update(1, stage="begun", saved=b"x")
            read = ledger.passes.current(), ledger.saves.of(1)
            assert read[0] is not None
            assert read[1] is not None
            assert (read[0].state, read[1].stage, read[1].saved) == ("saving", "begun", b"x")
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        halfway()

    assert (ledger.passes.current(), ledger.saves.of(1)) == (current, save)


def test_the_row_of_another_query_is_not_that_of_the_last(ledger: Ledger) -> None:
    a_pass(ledger, 1, state="done")
    a_pass(ledger, 2)
    a_pass(ledger, 3, state="waiting")

    read = [ledger.passes.current(), ledger.passes.last(), ledger.passes.current()]

    assert [None if each is None else each.ordinal for each in read] == [2, 3, 2]
    ledger.passes.update(2, state="done")
    assert ledger.passes.current() == ledger.passes.last()
    ledger.passes.update(3, state="done")
    assert ledger.passes.current() is None


def test_a_new_ledger_and_one_of_an_earlier_release_find_the_current_pass_by_index(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger(path).close()
    with sqlite3.connect(path) as earlier:
        earlier.execute("drop index passes_not_done")
        earlier.execute("pragma user_version = 0")
    earlier.close()

    Ledger(path).close()

    with sqlite3.connect(path) as again:
        plan = again.execute("explain query plan select id from passes where state != 'done' order by ordinal limit 1")
        assert "passes_not_done" in str(plan.fetchall())
    again.close()


def dump_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return sorted(db.iterdump())


def test_a_ledger_of_the_release_before_schema_numbers_opens_with_all_its_rows(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as earlier:
        earlier.executescript(Path(__file__).with_name("ledger_without_number.sql").read_text())
    before = dump_of(path)

    ledger = Ledger(path)

    assert ledger.one("pragma user_version")[0] == 1
    assert (ledger.facts.generation, ledger.facts.follows) == (3, 7)
    assert [(each.id, each.state) for each in ledger.passes.all()] == [
        ("20200401/00", "done"),
        ("20200401/01", "checking"),
    ]
    assert [task.state for task in ledger.tasks.of(2)] == ["done", "leased"]
    assert ledger.tasks.refusals(1) == {"no_colon": (2, ["1 0 17"])}
    assert [row["name"] for row in ledger.saves.checkpoints()] == ["20200401-00-g3"]
    assert ledger.saves.chain() == [7]
    ledger.close()
    assert dump_of(path) == before


def test_the_tables_of_a_new_ledger_are_those_of_the_release_before_schema_numbers(tmp_path: Path) -> None:
    Ledger(tmp_path / "new.db").close()
    with closing(sqlite3.connect(tmp_path / "earlier.db")) as earlier:
        earlier.executescript(Path(__file__).with_name("ledger_without_number.sql").read_text())

    def schema(name: str) -> list[str]:
        return [line for line in dump_of(tmp_path / name) if line.startswith("CREATE")]

    assert schema("new.db") == schema("earlier.db")


def test_a_ledger_of_a_newer_release_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    ledger = Ledger(path)
    ledger.do("pragma user_version = 2")
    ledger.close()

    with pytest.raises(NewerSchema) as refused, naming_damage(path):
        Ledger(path)

    assert str(refused.value) == (
        f"{path} has schema number 2 and this release knows up to 1, because a newer release has written it: go on with that release, or "
        "put a copy of the file back that this release has written"
    )


def test_an_exception_inside_a_transaction_leaves_nothing_of_it(ledger: Ledger) -> None:
    def halfway() -> None:
        with ledger:
            ledger.set_facts(looks=1)
            a_pass(ledger, 1)
            raise RuntimeError("halfway")

    with pytest.raises(RuntimeError, match="halfway"):
        halfway()

    assert ledger.facts.looks == 0
    assert ledger.passes.all() == []


def test_an_inner_transaction_is_part_of_the_outer_one(ledger: Ledger) -> None:
    def outer() -> None:
        with ledger:
            with ledger:
                ledger.set_facts(looks=1)
            raise RuntimeError("after the inner one")

    with pytest.raises(RuntimeError, match="after"):
        outer()

    assert ledger.facts.looks == 0


def test_after_a_failed_transaction_the_next_one_works(ledger: Ledger) -> None:
    ledger.passes.add(Pass(1, "20200401/00", (), 0, ends_day=False))
    with pytest.raises(sqlite3.IntegrityError):
        ledger.passes.add(Pass(1, "20200401/00", (), 0, ends_day=False))

    ledger.set_facts(looks=1)

    assert ledger.facts.looks == 1


def test_a_process_killed_inside_a_transaction_leaves_the_state_before_it(tmp_path: Path) -> None:
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from elastic_ctr.training.master.ledger.ledger import Ledger\n"
        "from elastic_ctr.training.master.ledger.rows import Pass\n"
        "ledger = Ledger(Path(sys.argv[1]))\n"
        "ledger.set_facts(looks=1)\n"
        "with ledger:\n"
        "    ledger.set_facts(attempts=1)\n"
        "    ledger.passes.add(Pass(1, 'p', (), 0, False))\n"
        "    print('inside', flush=True)\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "ledger.db")], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"inside\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()

    ledger = Ledger(tmp_path / "ledger.db")

    assert (ledger.facts.looks, ledger.facts.attempts) == (1, 0)
    assert ledger.passes.all() == []
    ledger.passes.add(Pass(1, "p", (), 0, ends_day=False))


def test_a_ledger_that_is_opened_again_has_all_that_was_written(tmp_path: Path) -> None:
    first = Ledger(tmp_path / "ledger.db")
    a_pass(first, 1)
    train(first, 1)
    save = SaveRow(1, 3, ("checkpoint", "delta"), "delta", 77, "c", 5.0)
    first.saves.begin(save)
    first.close()

    again = Ledger(tmp_path / "ledger.db")

    assert again.saves.of(1) == save
    assert again.passes.counts(1)["trained"] == 20
    assert again.tasks.samples(1) == [[("1:a", 2, 1)], [("1:a", 2, 1)]]
    assert again.tasks.refusals(1) == {"no_colon": (6, ["1 0 17", "1 0 17"])}


# -- tasks -------------------------------------------------------------------------------------------------------------


def test_the_present_pass_is_the_first_that_is_not_done(ledger: Ledger) -> None:
    for ordinal in (1, 2, 3):
        a_pass(ledger, ordinal, state="done" if ordinal == 1 else "checked")

    current = ledger.passes.current()

    assert current is not None
    assert current.ordinal == 2
    assert current.splits == ("20200401/02",)


def test_histograms_of_a_round_are_the_sums_over_its_tasks(ledger: Ledger) -> None:
    a_pass(ledger, 1)
    train(ledger, 1)

    found = ledger.tasks.histograms(1)

    assert found is not None
    assert [float(each.sum()) for each in found] == [8.0, 16.0]


def test_an_attempt_is_found_only_while_it_is_leased(ledger: Ledger) -> None:
    a_pass(ledger, 1)
    ledger.tasks.next_epoch(1)
    ledger.tasks.lease("1-0", 5, "1-0:1", 0.0, 10.0)
    task = ledger.tasks.of_attempt("1-0:1")
    assert task is not None

    ledger.tasks.give_back(task, error="lost", failed=True, repeated=10, park_at=3)

    assert ledger.tasks.of_attempt("1-0:1") is None
    assert ledger.passes.counts(1)["repeated"] == 10


def test_a_task_is_parked_at_the_last_attempt(ledger: Ledger) -> None:
    a_pass(ledger, 1, tasks=1)
    ledger.tasks.next_epoch(1)
    parked = []
    for number in range(2):
        ledger.tasks.lease("1-0", 5, f"1-0:{number}", 0.0, 10.0)
        [task] = ledger.tasks.of(1)
        parked.append(ledger.tasks.give_back(task, error="lost", failed=True, repeated=0, park_at=2))

    assert parked == [False, True]
    assert ledger.passes.counts(1)["parked"] == 10


def test_a_task_that_was_renewed_as_running_stays_running(ledger: Ledger) -> None:
    a_pass(ledger, 1, tasks=1)
    ledger.tasks.next_epoch(1)
    ledger.tasks.lease("1-0", 5, "x", 0.0, 10.0)

    ledger.tasks.renew(["x"], "x", 1.0, 11.0)
    ledger.tasks.renew(["x"], "", 2.0, 12.0)

    [task] = ledger.tasks.of(1)
    assert task.running
    assert task.lease_ends == 12.0


def test_filling_a_pass_again_forgets_what_was_found_in_it(ledger: Ledger) -> None:
    a_pass(ledger, 1)

    ledger.passes.fill(1, {"b": 1}, [("1-0", "b", 0, 0)])

    assert ledger.passes.counts(1)["records"] == 0
    assert ledger.passes.counts(1)["files"] == 1
    assert ledger.tasks.refusals(1) == {}
    assert ledger.tasks.samples(1) == []


# -- what is forgotten -------------------------------------------------------------------------------------------------


def lines_for(ledger: Ledger, ordinal: int) -> list[list[tuple[str, int, int]]]:
    """The sample lines that the version of a pass is checked with: its own, or those of the last one before that has any."""
    return next((found for each in range(ordinal, 0, -1) if (found := ledger.tasks.samples(each))), [])


def finished(ledger: Ledger, ordinal: int, *, samples: bool) -> None:
    """A pass that was trained and saved."""
    a_pass(ledger, ordinal, state="done")
    if not samples:
        ledger.db.execute("delete from sample_lines where pass = ?", (ordinal,))
    train(ledger, ordinal)
    ledger.saves.begin(SaveRow(ordinal, 1, ("checkpoint",), None, None, f"c{ordinal}", 0.0))
    ledger.saves.update(ordinal, stage="done", saved=bytes(1000), written=b"0")


@settings(max_examples=60, deadline=None)
@given(
    samples=st.lists(st.booleans(), min_size=1, max_size=6),
    checkpoints=st.sets(st.integers(1, 6)),
    mid=st.booleans(),
)
def test_rows_that_a_ledger_forgets_are_not_needed_after_a_return_to_a_checkpoint(
    samples: list[bool], checkpoints: set[int], mid: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.db")
        ledger.db.execute("pragma synchronous = off")
        for ordinal, has in enumerate(samples, 1):
            finished(ledger, ordinal, samples=has)
        a_pass(ledger, len(samples) + 1)
        made = sorted(ordinal for ordinal in checkpoints if ordinal <= len(samples))
        for ordinal in made:
            middle = {"state": "training", "epoch": 1, "trained_at": None} if mid and ordinal == made[0] else None
            ledger.saves.add_checkpoint(f"c{ordinal}", ordinal, None, None, 0.0, mid=middle)
        # A pass that is taken up again is gone back to before its beginning, whatever checkpoint was made in its middle.
        back_to = made[0] - int(mid) if len(made) > int(mid) else 0
        coming = range(back_to + 1, len(samples) + 2)
        before = [lines_for(ledger, ordinal) for ordinal in coming]
        told = (
            ledger.passes.counts(),
            ledger.tasks.refusals(1),
            ledger.tasks.histograms(len(samples) + 1),
            ledger.saves.checkpoints(),
        )

        ledger.forget()

        assert [lines_for(ledger, ordinal) for ordinal in coming] == before
        again = (
            ledger.passes.counts(),
            ledger.tasks.refusals(1),
            ledger.tasks.histograms(len(samples) + 1),
            ledger.saves.checkpoints(),
        )
        assert repr(again) == repr(told)
        for row in ledger.saves.checkpoints()[:1]:
            ledger.roll_back(row["pass"], row if row["mid"] else None)
            assert [lines_for(ledger, ordinal) for ordinal in coming] == before
        ledger.close()


def test_a_ledger_grows_by_little_with_each_pass_that_is_done(ledger: Ledger) -> None:
    random = np.random.default_rng(1)
    used = []
    for ordinal in range(1, 13):
        a_pass(ledger, ordinal, tasks=20, state="done")
        for task in ledger.tasks.of(ordinal):
            ledger.tasks.trained(task, tuple(random.poisson(3, (2, BUCKETS)).astype(float)))
        ledger.saves.begin(SaveRow(ordinal, 1, ("checkpoint",), None, None, f"c{ordinal}", 0.0))
        ledger.saves.update(ordinal, stage="done", saved=random.bytes(100_000), written=b"0")
        ledger.saves.add_checkpoint(f"c{ordinal}", ordinal, None, None, 0.0)
        if ordinal > 2:
            ledger.saves.remove_checkpoint(f"c{ordinal - 2}")
        ledger.forget()
        pages, free = (ledger.all(f"pragma {what}")[0][0] for what in ("page_count", "freelist_count"))
        used.append(4096 * (pages - free))

    assert max(np.diff(used)) < 100_000
    assert used[-1] - used[3] < 8 * 10_000
    assert [task.id for task in ledger.tasks.of(1)] == [f"1-{number}" for number in range(20)]


# -- recovery ----------------------------------------------------------------------------------------------------------


def test_a_roll_back_forgets_training_after_the_checkpoint_and_keeps_what_the_check_found(ledger: Ledger) -> None:
    for ordinal in (1, 2, 3):
        a_pass(ledger, ordinal, state="done")
    for ordinal, done in ((1, 2), (2, 2), (3, 1)):
        train(ledger, ordinal, done=done)
    ledger.passes.update(3, state="training")

    lost = ledger.roll_back(1)

    assert lost == 30
    assert [ledger.passes.counts(n)["trained"] for n in (1, 2, 3)] == [20, 0, 0]
    assert [ledger.passes.counts(n)["records"] for n in (1, 2, 3)] == [20, 20, 20]
    assert [each.state for each in ledger.passes.all()] == ["done", "checked", "checked"]
    assert [each.epoch for each in ledger.passes.all()] == [1, 0, 0]


def test_a_record_trained_in_two_epochs_is_lost_once(ledger: Ledger) -> None:
    a_pass(ledger, 1)
    train(ledger, 1)
    train(ledger, 1)

    assert ledger.roll_back(0) == 20


def test_a_roll_back_frees_leases_and_drops_saves(ledger: Ledger) -> None:
    a_pass(ledger, 1)
    ledger.tasks.next_epoch(1)
    ledger.tasks.lease("1-0", 5, "x", 0.0, 10.0)
    ledger.saves.begin(SaveRow(1, 1, ("delta",), "delta", 7, None, 0.0))

    ledger.roll_back(0)

    assert ledger.tasks.leased() == []
    assert ledger.saves.of(1) is None


def test_a_pass_that_is_still_checked_goes_on_after_a_roll_back(ledger: Ledger) -> None:
    a_pass(ledger, 1, state="checking")

    ledger.roll_back(0)

    assert [each.state for each in ledger.passes.all()] == ["checking"]


def rounds_of(ledger: Ledger, ordinal: int) -> list[tuple[object, ...]]:
    """What training changes in the tasks of a pass."""
    return ledger.all("select id, state, trained, repeated, positives from tasks where pass = ? order by id", ordinal)


def some_rounds(ledger: Ledger, ordinal: int, steps: list[tuple[int, str]]) -> None:
    """Any of a pass's tasks in turn is trained, lost while it was trained, or leased; or the next round begins."""
    for number, step in steps:
        task = ledger.tasks.of(ordinal)[number % len(ledger.tasks.of(ordinal))]
        if step == "train":
            ledger.tasks.trained(task, histograms(number + 1))  # type: ignore[arg-type]
        elif step == "lose":
            ledger.tasks.give_back(task, error="lost", failed=False, lost=True, repeated=task.records, park_at=99)
        elif step == "lease":
            ledger.tasks.lease(task.id, 1, f"attempt-{number}", 0.0, 10.0)
        else:
            ledger.tasks.next_epoch(ordinal)


steps = st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["train", "lose", "lease", "round"])), max_size=12)


@settings(max_examples=60, deadline=None)
@given(before=steps, after=steps, later=st.booleans(), epoch=st.integers(1, 3))
def test_a_roll_back_to_mid_pass_keeps_exactly_what_the_checkpoint_has(
    before: list[tuple[int, str]], after: list[tuple[int, str]], later: bool, epoch: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        ledger = Ledger(Path(folder) / "ledger.db")
        ledger.db.execute("pragma synchronous = off")
        a_pass(ledger, 1, state="done")
        train(ledger, 1)
        a_pass(ledger, 2, tasks=4, state="saving")
        some_rounds(ledger, 2, [(n, step) for n, step in before if step != "lease"])
        mid = {"state": "training", "epoch": epoch, "trained_at": None}
        ledger.saves.add_checkpoint("m-g1", 2, None, None, 0.0, mid=mid)
        kept, trained = rounds_of(ledger, 2), {task.id: task.trained for task in ledger.tasks.of(2)}
        some_rounds(ledger, 2, after)
        if later:
            ledger.passes.update(2, state="done")
            a_pass(ledger, 3)
            train(ledger, 3, done=1)
        counted = ledger.passes.counts()
        expected = sum(task.records for task in ledger.tasks.of(2) if task.trained > trained[task.id]) + 10 * later

        lost = ledger.roll_back(2, ledger.saves.checkpoints()[-1])

        assert lost == expected
        assert rounds_of(ledger, 2) == kept
        assert [(one.state, one.epoch) for one in ledger.passes.all()[:2]] == [("done", 1), ("training", epoch)]
        assert ledger.tasks.leased() == []
        now = ledger.passes.counts()
        assert ledger.passes.counts(1)["trained"] == 20
        assert (now["records"], now["refused"], now["parked"]) == (counted["records"], counted["refused"], 0)
        assert now["trained"] == 20 + 10 * sum(times > 0 for times in trained.values())
        ledger.close()


def test_rows_that_a_checkpoint_keeps_are_removed_with_it(ledger: Ledger) -> None:
    a_pass(ledger, 1)
    ledger.saves.add_checkpoint("m-g1", 1, None, None, 0.0, mid={"state": "training", "epoch": 1, "trained_at": None})
    ledger.saves.add_checkpoint("c-g2", 1, 7, 7, 1.0)
    assert [bool(each["mid"]) for each in ledger.saves.checkpoints()] == [True, False]

    ledger.saves.remove_checkpoint("m-g1")

    assert [each["name"] for each in ledger.saves.checkpoints()] == ["c-g2"]
    assert ledger.all("select * from kept") == []


def test_a_stopped_pass_stays_stopped_when_its_middle_is_gone_back_to(ledger: Ledger) -> None:
    a_pass(ledger, 1)
    ledger.saves.add_checkpoint("m-g1", 1, None, None, 0.0, mid={"state": "training", "epoch": 1, "trained_at": None})
    ledger.passes.update(1, state="stopped", reason="the disk is full")

    ledger.roll_back(1, ledger.saves.checkpoints()[-1])

    assert [(each.state, each.reason) for each in ledger.passes.all()] == [("stopped", "the disk is full")]


def test_counts_of_every_pass_at_once_are_those_of_each(ledger: Ledger) -> None:
    for ordinal in (1, 2, 3):
        a_pass(ledger, ordinal, tasks=ordinal)
    train(ledger, 2, done=1)
    ledger.tasks.give_back(ledger.tasks.of(3)[0], error="x", failed=True, repeated=10, park_at=1)
    ledger.passes.add(Pass(4, "20200401/04", (), 0, ends_day=False))

    by_pass = ledger.passes.counts_by_pass(2)

    assert {ordinal: by_pass[ordinal] for ordinal in (2, 3, 4)} == {n: ledger.passes.counts(n) for n in (2, 3, 4)}
    assert 1 not in by_pass


def test_seconds_of_stages_are_kept_by_pass(ledger: Ledger) -> None:
    for ordinal in (2, 10):
        a_pass(ledger, ordinal)
        ledger.passes.took(ordinal, {"train": 1.23456})
        ledger.passes.took(ordinal, {"exportUpload": ordinal})

    assert [each.seconds for each in ledger.passes.all()] == [{"train": 1.235, "exportUpload": n} for n in (2, 10)]


@given(st.lists(st.floats(0, 1e15), max_size=50))
def test_a_histogram_comes_back_as_it_was_packed(counts: list[float]) -> None:
    histogram = np.resize(np.array([*counts, 0.0]), BUCKETS)

    assert np.array_equal(unpacked(packed(histogram)), histogram)


def test_facts_of_a_new_ledger_are_those_of_the_class(ledger: Ledger) -> None:
    assert ledger.facts == Facts()


def test_facts_are_checked_before_they_are_written(ledger: Ledger) -> None:
    with pytest.raises(ValidationError, match="generatoin"):
        ledger.set_facts(generatoin=2)
    with pytest.raises(ValidationError, match="generation"):
        ledger.set_facts(generation="two")

    assert ledger.facts == Facts()


def test_a_row_of_each_table_has_its_columns_in_their_types(ledger: Ledger) -> None:
    a_pass(ledger, 1)
    ledger.passes.update(1, auc=0.5, done_at=7.0, version=9)
    first = ledger.tasks.of(1)[0]
    ledger.tasks.lease(first.id, 3, "t:1", 6.0, 8.0)
    ledger.tasks.renew(["t:1"], "t:1", 6.5, 9.0)
    save = SaveRow(1, 2, ("base", "checkpoint"), "base", 9, "c", 4.0, "saved", b"x", b"y")
    ledger.saves.begin(save)

    [one] = ledger.passes.all()
    task = ledger.tasks.of(1)[0]

    assert (one.splits, one.ends_day, one.auc, one.auc_before, one.version) == (("20200401/01",), False, 0.5, None, 9)
    assert (task.ordinal, task.lost_leases, task.running, task.lease_ends) == (1, 0, True, 9.0)
    assert ledger.saves.of(1) == save


def test_a_damaged_ledger_is_one_sentence_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    Ledger(path).close()
    pages = bytearray(path.read_bytes())
    pages[4096:] = bytes(each ^ 0x5A for each in pages[4096:])
    path.write_bytes(pages)

    with pytest.raises(LedgerDamaged) as ended, naming_damage(path):
        Ledger(path).passes.all()

    sentence = str(ended.value)
    assert sentence.startswith(f"the ledger {path} is damaged (")
    assert (
        "Put a copy of it back, without ledger.db-wal and ledger.db-shm beside it; or begin another model" in sentence
    )


def test_a_file_that_is_no_database_is_a_damaged_ledger_and_a_full_disk_is_not(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(b"no database" * 1000)

    with pytest.raises(LedgerDamaged, match="file is not a database"), naming_damage(path):
        Ledger(path)
    with pytest.raises(sqlite3.OperationalError), naming_damage(path):
        raise sqlite3.OperationalError("database or disk is full")
