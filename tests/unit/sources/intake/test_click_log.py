"""The log against a list of lines, with the losses of a machine."""

import os
import random
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.sources.intake import click_log
from elastic_ctr.sources.intake.click_log import (
    Appended,
    BatchDamaged,
    ClickLog,
    KeyReused,
    LogUnwritable,
    Piece,
    Retention,
)
from elastic_ctr.sources.intake.disk_bytes import bytes_of_row
from elastic_ctr.sources.intake.impressions import Joins
from elastic_ctr.sources.intake.join import LateClicks
from elastic_ctr.sources.intake.request_lines import Clicks, clicks_of
from elastic_ctr.sources.streams.interface import Kept

FOR_EVER = Retention(1e9, 1 << 40)
LONG = 1 << 20


def clicks(*lines: str, key: str | None = None) -> Clicks:
    return clicks_of("\n".join(lines).encode(), LONG, key)


@contextmanager
def log_in(folder: Path, retention: Retention = FOR_EVER, remembered: int = 100) -> Iterator[ClickLog]:
    with closing(ClickLog(folder, retention, remembered)) as made:
        yield made


def read_all(log: ClickLog, start: int, stop: int, most: int = 1 << 20) -> tuple[int, list[bytes]]:
    """The first offset that came, and the lines, piece by piece."""
    first, found = None, []
    while start < stop:
        piece = log.read(start, stop, most)
        first = piece.first if first is None else first
        assert piece.text.count(b"\n") == piece.next - piece.first
        found += piece.text.splitlines()
        start = piece.next
    return (stop if first is None else first), found


def numbered(start: int, stop: int) -> list[bytes]:
    return [b"%d" % number for number in range(start, stop)]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, 6), max_size=4), max_size=8),
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60), st.integers(1, 40)), max_size=6),
)
def test_every_range_is_the_lines_that_were_appended_under_its_offsets(
    groups: list[list[int]], ranges: list[tuple[int, int, int]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        end = 0
        for group in groups:
            # It is opened anew each time.
            with log_in(Path(folder)) as log:
                sent = []
                for count in group:
                    sent.append(clicks(*(str(number) for number in range(end, end + count))))
                    end += count
                first = end - sum(group)
                wanted = []
                for count in group:
                    wanted.append(Appended(first, first + count))
                    first += count
                assert log.append(sent, 0.0) == wanted
        with log_in(Path(folder)) as log:
            assert log.kept == Kept(0, end)
            for a, b, most in ranges:
                start, stop = sorted((min(a, end), min(b, end)))
                assert read_all(log, start, stop, most) == (start, numbered(start, stop))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 30)), min_size=1, max_size=12), st.integers(4, 60))
def test_the_oldest_lines_go_and_no_offset_is_given_twice(steps: list[tuple[int, int]], most: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        end, now, sizes = 0, 0.0, []
        for count, passed in steps:
            now += passed
            with log_in(Path(folder), Retention(50, most)) as log:
                text = clicks(*(str(number) for number in range(end, end + count)))
                [found] = log.append([text], now)
                assert found == Appended(end, end + count)
                sizes.append((end, bytes_of_row(len(text.text)), now))
                end += count
                # What is older or too much has gone, batch after batch, and nothing else.
                left = [each for each in sizes if each[2] >= now - 50]
                while sum(size for _, size, _ in left) > most:
                    left.pop(0)
                first = left[0][0] if left else end
                assert log.kept == Kept(first, end)
                assert log.bytes == sum(size for _, size, _ in left)
                assert read_all(log, 0, end) == (first, numbered(first, end))


def test_offsets_go_on_after_everything_has_gone_and_a_restart(tmp_path: Path) -> None:
    with log_in(tmp_path, Retention(10, LONG)) as log:
        log.append([clicks("a", "b")], 0.0)
        log.append([], 100.0)
        assert (log.kept, log.bytes) == (Kept(2, 2), 0)
        assert log.read(0, 2, 10) == Piece(2, 2, b"")
    with log_in(tmp_path) as log:
        assert log.kept == Kept(2, 2)
        assert log.append([clicks("c")], 100.0) == [Appended(2, 3)]
        assert read_all(log, 0, 3) == (2, [b"c"])


def test_a_log_has_a_name_of_its_own_that_it_keeps(tmp_path: Path) -> None:
    names = []
    for folder in ("one", "one", "two"):
        with log_in(tmp_path / folder) as log:
            names.append(log.partition)

    assert names[0] == names[1] != names[2]
    assert all(re.fullmatch("clicks-[0-9a-f]{8}", name) for name in names)


def test_pages_of_lines_that_went_are_used_again(tmp_path: Path) -> None:
    with log_in(tmp_path, Retention(1e9, 1 << 20)) as log:
        sizes = []
        for number in range(60):
            log.append([clicks("x" * 100_000, key=str(number))], 0.0)
            sizes.append((tmp_path / "clicks.sqlite").stat().st_size)

    assert sizes[-1] < 3 << 20


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30), st.integers(1, 60))
def test_a_large_request_is_several_batches_of_whole_lines(lengths: list[int], most: int) -> None:
    lines = ["x" * length for length in lengths]
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(click_log, "BATCH_BYTES", most)
        with log_in(Path(folder)) as log:
            assert log.append([clicks(*lines[:5]), clicks(*lines)], 0.0) == [
                Appended(0, len(lines[:5])),
                Appended(len(lines[:5]), len(lines[:5]) + len(lines)),
            ]
            sizes = log._file.db.execute("select length(text), count from batches").fetchall()
            assert all(size <= most or count == 1 for size, count in sizes)
            everything = [line.encode() for line in lines[:5] + lines]
            assert read_all(log, 0, log.kept.end) == (0, everything)


def test_a_repeat_is_answered_with_the_offsets_that_the_request_had(tmp_path: Path) -> None:
    with log_in(tmp_path) as log:
        [first, same] = log.append([clicks("a", "b", key="k"), clicks("a", "b", key="k")], 0.0)
        log.append([clicks("c")], 0.0)
        [later] = log.append([clicks("a", "b", key="k")], 0.0)
    with log_in(tmp_path) as log:
        [restarted, other] = log.append([clicks("a", "b", key="k"), clicks("a", "b", key="l")], 0.0)

        assert first == Appended(0, 2)
        assert same == later == restarted == Appended(0, 2, repeated=True)
        assert other == Appended(3, 5)
        assert log.kept.end == 5


def test_a_key_with_other_lines_is_refused_and_its_neighbours_are_not(tmp_path: Path) -> None:
    with log_in(tmp_path) as log:
        log.append([clicks("a", key="k")], 0.0)
        refused, taken = log.append([clicks("b", key="k"), clicks("c")], 0.0)

        assert isinstance(refused, KeyReused)
        assert "Idempotency-Key 'k' came before with other lines; give each request its own key" in str(refused)
        assert taken == Appended(1, 2)


def test_the_last_keys_are_remembered(tmp_path: Path) -> None:
    with log_in(tmp_path, remembered=3) as log:
        for number in range(5):
            log.append([clicks("a", key=str(number))], 0.0)

        assert log.append([clicks("a", key="2")], 0.0) == [Appended(2, 3, repeated=True)]
        assert log.append([clicks("a", key="1")], 0.0) == [Appended(5, 6)]


_APPENDS_WITHOUT_AN_END = """
import sys
from pathlib import Path
from elastic_ctr.sources.intake.click_log import ClickLog, Retention
from elastic_ctr.sources.intake.request_lines import clicks_of

log = ClickLog(Path(sys.argv[1]), Retention(1e9, 1 << 40), 1000)
number = log.kept.end
print("began", flush=True)
while True:
    # Three requests of one transaction, larger than a page.
    group = [clicks_of(b"%d %s\\n" % (number + each, b"x" * 3000), 1 << 20, str(number + each)) for each in range(3)]
    for found in log.append(group, 0.0):
        print(found.first, found.end, flush=True)
    number += 3
"""


def test_after_kill_9_acknowledged_clicks_are_there_and_no_transaction_by_half(tmp_path: Path) -> None:
    rng = random.Random(5)
    acknowledged = 0
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", _APPENDS_WITHOUT_AN_END, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "began\n"
            for _ in range(rng.randrange(1, 200)):
                child.stdout.readline()
            # Somewhere in a transaction.
            os.kill(child.pid, signal.SIGKILL)
            rest = child.stdout.read().splitlines(keepends=True)
        whole = [line for line in rest if line.endswith("\n")]
        if whole:
            acknowledged = max(acknowledged, int(whole[-1].split()[1]))
        with log_in(tmp_path) as log:
            assert log.kept.end >= acknowledged
            assert log.kept.end % 3 == 0
            first, lines = read_all(log, 0, log.kept.end)
            assert first == 0
            assert lines == [b"%d %s" % (number, b"x" * 3000) for number in range(log.kept.end)]
            assert log.bytes == sum(
                bytes_of_row(size) for (size,) in log._file.db.execute("select length(text) from batches")
            )
            # The keys went with the lines.
            last = log.kept.end - 1
            repeat = clicks(f"{last} {'x' * 3000}", key=str(last))
            assert log.append([repeat], 0.0) == [Appended(last, last + 1, repeated=True)]
            acknowledged = log.kept.end


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[Path]:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", folder], check=True, timeout=60)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True, timeout=60)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount a small disk: sudo make test")
def test_a_full_disk_refuses_whole_requests_and_room_is_all_it_takes(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 8) as disk, log_in(disk) as log:
        filler = disk / "filler"
        log.append([clicks("first")], 0.0)
        with filler.open("wb", buffering=0) as file, suppress(OSError):
            while file.write(b"\0" * (1 << 16)):
                pass
        with pytest.raises(
            LogUnwritable, match=r"\(database or disk is full\): make room where it is, or enlarge intake"
        ):
            log.append([clicks("small", key="a"), clicks("x" * 1_000_000, key="b")], 0.0)
        # What is there is read, and nothing of the refused ones.
        assert log.kept == Kept(0, 1)
        assert read_all(log, 0, 1) == (0, [b"first"])

        filler.unlink()
        assert log.append([clicks("small", key="a")], 0.0) == [Appended(1, 2)]
        assert read_all(log, 0, 2) == (0, [b"first", b"small"])


def test_a_file_that_is_no_log_is_named(tmp_path: Path) -> None:
    (tmp_path / "clicks.sqlite").write_bytes(b"no database" * 1000)

    with pytest.raises(
        LogUnwritable, match=r"clicks.sqlite is damaged \(file is not a database\): restore it, or begin"
    ):
        ClickLog(tmp_path, FOR_EVER)


def test_a_page_that_a_disk_has_lost_is_named_and_nothing_is_made_up(tmp_path: Path) -> None:
    with log_in(tmp_path) as log:
        for _ in range(50):
            log.append([clicks("x" * 3000)], 0.0)
    path = tmp_path / "clicks.sqlite"
    whole = path.read_bytes()
    path.write_bytes(whole[: 3 * 4096] + b"\xff" * (len(whole) - 3 * 4096))

    with pytest.raises(LogUnwritable, match="is damaged"), log_in(tmp_path) as log:
        read_all(log, 0, 50)


def test_readers_see_no_transaction_that_is_under_way(tmp_path: Path) -> None:
    with log_in(tmp_path) as log:
        log.append([clicks("a")], 0.0)
        with closing(sqlite3.connect(tmp_path / "clicks.sqlite", isolation_level=None)) as other:
            other.execute("begin immediate")
            other.execute("insert into batches values (1, 1, 2, 0, ?)", (b"b\n",))

            assert log.read(0, 1, 100) == Piece(0, 1, b"a\n")
            assert log.kept == Kept(0, 1)
            other.execute("rollback")


def damage(folder: Path, first: int) -> None:
    """Turns a bit of a batch, as a disk does."""
    with closing(sqlite3.connect(folder / "clicks.sqlite", isolation_level=None)) as db:
        [text] = db.execute("select text from batches where first = ?", (first,)).fetchone()
        db.execute("update batches set text = ? where first = ?", (bytes([text[0] ^ 1]) + text[1:], first))


def test_a_damaged_batch_is_named_with_a_way_out_and_the_others_are_read(tmp_path: Path) -> None:
    with log_in(tmp_path) as log:
        for start in (0, 3, 6):
            log.append([clicks(*(str(number) for number in range(start, start + 3)))], 0.0)
    damage(tmp_path, 3)

    with log_in(tmp_path) as log:
        assert read_all(log, 0, 3) == (0, numbered(0, 3))
        with pytest.raises(
            BatchDamaged, match=r"offsets 3 to 5 are damaged in .*: put a copy .* set intake\.config\.skipDamaged"
        ):
            log.read(4, 9, 1 << 20)
        assert log.damaged == {3: 6}
        assert read_all(log, 6, 9) == (6, numbered(6, 9))


def test_a_damaged_batch_is_left_out_where_the_settings_say_so(tmp_path: Path) -> None:
    with log_in(tmp_path) as log:
        for start in (0, 3, 6):
            log.append([clicks(*(str(number) for number in range(start, start + 3)))], 0.0)
    damage(tmp_path, 3)

    with closing(ClickLog(tmp_path, FOR_EVER, skip_damaged=True)) as log:
        assert log.read(0, 9, 1 << 20) == Piece(0, 3, b"0\n1\n2\n")
        assert log.read(3, 9, 1 << 20) == Piece(6, 9, b"6\n7\n8\n")
        assert log.read(3, 5, 1 << 20) == Piece(5, 5, b"")


def test_batches_of_an_earlier_release_have_no_checksum_and_are_read(tmp_path: Path) -> None:
    with log_in(tmp_path) as log:
        log.append([clicks("0", "1")], 0.0)
    with closing(sqlite3.connect(tmp_path / "clicks.sqlite", isolation_level=None)) as db:
        db.execute("drop table checksums")
        db.execute("pragma user_version = 0")

    with log_in(tmp_path) as log:
        log.append([clicks("2")], 0.0)
        assert read_all(log, 0, 3) == (0, numbered(0, 3))


def without_number(path: Path) -> None:
    with closing(sqlite3.connect(path)) as earlier:
        earlier.executescript(Path(__file__).with_name("click_log_without_number.sql").read_text())


def dump_of(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as db:
        return sorted(db.iterdump())


def number_of(path: Path) -> int:
    with closing(sqlite3.connect(path)) as db:
        [number] = db.execute("pragma user_version").fetchone()
    return int(number)


def test_a_log_of_the_release_before_schema_numbers_opens_with_all_that_it_has(tmp_path: Path) -> None:
    path = tmp_path / "clicks.sqlite"
    without_number(path)
    before = dump_of(path)
    rules = LateClicks("jsonl", (), "id", "click", "n", frozenset({"city"}))
    third = b'{"id": "3", "city": "7", "n": 1, "click": 0}\n'

    with closing(ClickLog(tmp_path, FOR_EVER, join=(rules, 3600))) as log:
        assert (number_of(path), dump_of(path)) == (1, before)
        assert (log.partition, log.kept, log.bytes) == ("clicks-01234567", Kept(2, 4), 160)
        assert (log.clock_moved(), log.needed, log.positions()) == (5.0, 2, {"clicks/0": 17})
        assert log.read(2, 4, LONG) == Piece(2, 4, third + b'{"id": "1", "city": "7", "n": 0, "click": 1}\n')
        assert log.append([clicks(third.decode(), key="second")], 22.0) == [Appended(2, 3, repeated=True)]
        assert log.append([clicks('{"id": "2", "click": 1}')], 22.0) == [Appended(4, 5)]
        assert log.joins == Joins(joined=1)


def test_the_tables_of_a_new_log_are_those_of_the_release_before_schema_numbers(tmp_path: Path) -> None:
    rules = LateClicks("jsonl", (), "id", "click", "n", frozenset({"city"}))
    ClickLog(tmp_path, FOR_EVER, join=(rules, 3600)).close()
    without_number(tmp_path / "earlier.sqlite")

    def schema(name: str) -> list[str]:
        return [line for line in dump_of(tmp_path / name) if line.startswith("CREATE")]

    assert schema("clicks.sqlite") == schema("earlier.sqlite")


def test_checksums_go_with_their_batches(tmp_path: Path) -> None:
    with log_in(tmp_path, Retention(10, 1 << 40)) as log:
        log.append([clicks("0")], 0.0)
        log.append([clicks("1")], 20.0)
    with closing(sqlite3.connect(tmp_path / "clicks.sqlite")) as db:
        assert db.execute("select first from checksums").fetchall() == [(1,)]


def test_a_transaction_that_joins_leaves_lines_beyond_the_most_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(click_log, "JOINED_LINES", 3)
    rules = LateClicks("jsonl", (), "id", "click", "n", frozenset({"user"}))
    with closing(ClickLog(tmp_path, FOR_EVER, join=(rules, 60.0))) as log:
        requests = [clicks("a", "b"), clicks("c"), clicks("d")]

        assert log.append(requests, 0.0) == [Appended(0, 2), Appended(2, 3)]
        assert log.append(requests[2:], 0.0) == [Appended(3, 4)]
