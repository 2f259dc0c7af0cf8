"""Clicks that carry only a key: the rules, and the state beside a dictionary."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.sources.intake import click_log, impressions
from elastic_ctr.sources.intake.click_log import Appended, ClickLog, Retention
from elastic_ctr.sources.intake.impressions import Joins, TooMuchJoined
from elastic_ctr.sources.intake.join import Kind, LateClicks, Row
from elastic_ctr.sources.intake.request_lines import clicks_of
from sources.intake.desk import desk, intake_file

COLUMNS = ("id", "click", "n", "city")
CITY = frozenset({"city"})
FEATURES = {"city": {"type": "categorical"}}
JSONL = LateClicks("jsonl", (), "id", "click", "n", CITY)
CSV = LateClicks("csv", COLUMNS, "id", "click", "n", CITY)
TSV = LateClicks("tsv", COLUMNS, "id", "click", "n", CITY)
FOR_EVER = Retention(1e9, 1 << 40)


@pytest.mark.parametrize(
    ("rules", "line", "row"),
    [
        (JSONL, b'{"id": "a", "click": 0, "n": 1, "city": "x"}', Row(Kind.IMPRESSION, "a")),
        (JSONL, b'{"id": 7, "click": 1, "n": 1, "city": "x"}', Row(Kind.IMPRESSION, "7", clicked=True)),
        (JSONL, b'{"id": "a", "click": 1}', Row(Kind.CLICK, "a")),
        (JSONL, b'{"id": "a", "click": 1, "n": 0, "city": null, "tags": [], "more": ""}', Row(Kind.CLICK, "a")),
        (JSONL, b'{"id": "a", "click": "1"}', Row(Kind.CLICK, "a")),
        # What no feature reads may be beside the id.
        (JSONL, b'{"id": "a", "click": 1, "n": 0, "at": 1700000000, "city": ""}', Row(Kind.CLICK, "a")),
        (JSONL, b'{"id": "a", "click": 1, "n": 1}', Row(Kind.CLICK, "a")),
        # A late click of the sender's own, a row of no shows, one without a key, and what is no row.
        (JSONL, b'{"id": "a", "click": 1, "n": 0, "city": "x"}', Row(Kind.OTHER)),
        (JSONL, b'{"id": "a", "click": 0}', Row(Kind.OTHER)),
        (JSONL, b'{"n": 1, "click": 0, "city": "x"}', Row(Kind.OTHER)),
        (JSONL, b'{"id": "a", "city": "x"}', Row(Kind.OTHER)),
        (JSONL, b"[1]", Row(Kind.OTHER)),
        (JSONL, b"\xff{", Row(Kind.OTHER)),
        (JSONL, b"no row", Row(Kind.OTHER)),
        # Clicks of nothing: none of them is trained as it is.
        (JSONL, b'{"id": "", "click": 1}', Row(Kind.CLICK)),
        (JSONL, b'{"id": null, "click": 1}', Row(Kind.CLICK)),
        (JSONL, b'{"click": 1, "n": 0}', Row(Kind.CLICK)),
        (JSONL, b'{"id": 1.5, "click": 1}', Row(Kind.CLICK)),
        (JSONL, b'{"id": true, "click": 1}', Row(Kind.CLICK)),
        (JSONL, b'{"id": "' + b"a" * 256 + b'", "click": 1}', Row(Kind.CLICK)),
        (JSONL, b'{"id": "a", "click": 2}', Row(Kind.CLICK)),
        # Numbers that are rounded are keys neither of clicks nor of impressions.
        (JSONL, b'{"id": 18446744073709551615, "click": 1}', Row(Kind.CLICK, "18446744073709551615")),
        (JSONL, b'{"id": 18446744073709551616, "click": 1}', Row(Kind.CLICK)),
        (JSONL, b'{"id": 18446744073709551616, "click": 0, "n": 1, "city": "x"}', Row(Kind.OTHER)),
        (JSONL, b'{"id": 1.0, "click": 1}', Row(Kind.CLICK)),
        (JSONL, b'{"id": 1.0, "click": 0, "n": 1, "city": "x"}', Row(Kind.OTHER)),
        (CSV, b"a,0,1,x", Row(Kind.IMPRESSION, "a")),
        (CSV, b"a,1,,\r", Row(Kind.CLICK, "a")),
        (CSV, b'"a,""b""",1,0,""', Row(Kind.CLICK, 'a,"b"')),
        (CSV, b'a,0,1,"x,y"', Row(Kind.IMPRESSION, "a")),
        (CSV, b'a,0,1,"x', Row(Kind.OTHER)),
        (CSV, b'"a"b,1,0,', Row(Kind.OTHER)),
        (CSV, b"a,1,0", Row(Kind.OTHER)),
        (CSV, b"a,1,0,,", Row(Kind.OTHER)),
        (CSV, b"\xff,1,0,", Row(Kind.OTHER)),
        (TSV, b'"a\t1\t\t', Row(Kind.CLICK, '"a')),
    ],
)
def test_a_row_is_an_impression_a_click_alone_or_neither(rules: LateClicks, line: bytes, row: Row) -> None:
    assert rules.row_of(line) == row


@pytest.mark.parametrize(
    ("rules", "impression", "late"),
    [
        (JSONL, b'{"id": "a", "click": 0, "n": 1, "city": "x"}', b'{"id": "a", "click": 1, "n": 0, "city": "x"}'),
        # Numbers and texts of other columns stay as they were written.
        (
            JSONL,
            b' {"n":2,"x":[1e2,{"click":0}],"y":123456789012345678901234,"t":"\\u00e9 \xc3\xa9\\"","click":0.0 ,"id":"a"}\r',
            b' {"n":0,"x":[1e2,{"click":0}],"y":123456789012345678901234,"t":"\\u00e9 \xc3\xa9\\"","click":1 ,"id":"a"}\r',
        ),
        (CSV, b'a,0,1,"x,""y"\r', b'a,1,0,"x,""y"\r'),
        (CSV, b'a,"0","1",', b"a,1,0,"),
        (TSV, b'a\t0\t1\t"x', b'a\t1\t0\t"x'),
    ],
)
def test_a_late_click_has_the_bytes_of_its_impression_but_for_shows_and_click(
    rules: LateClicks, impression: bytes, late: bytes
) -> None:
    assert rules.late_click_of(impression) == late


@given(
    st.dictionaries(st.text(max_size=5), st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)), max_size=5),
    st.booleans(), st.sampled_from([None, 1]),
)  # fmt: skip
def test_any_json_row_becomes_the_same_row_with_a_click_and_no_shows(
    cells: dict[str, Any], escaped: bool, indent: int | None
) -> None:
    row = {**cells, "id": "a", "click": 0, "n": 1}
    line = json.dumps(row, ensure_ascii=escaped, separators=None if indent is None else (" ,\t", " : ")).encode(
        "utf-8", "surrogatepass"
    )

    assert json.loads(JSONL.late_click_of(line)) == {**row, "click": 1, "n": 0}


def impression(key: int, city: int = 0, clicked: int = 0) -> bytes:
    return b'{"id": "%d", "city": "%d", "n": 1, "click": %d}\n' % (key, city, clicked)


def click(key: int) -> bytes:
    return b'{"id": "%d", "click": 1}\n' % key


def late(key: int, city: int = 0) -> bytes:
    return b'{"id": "%d", "city": "%d", "n": 0, "click": 1}\n' % (key, city)


class Oracle:
    """The same with a dictionary, without a file."""

    def __init__(self, window: float) -> None:
        self.window = window
        self.known: dict[int, tuple[float, int, bool]] = {}
        self.counts = Joins()
        self.lines = b""

    def take(self, now: float, what: str, key: int, city: int) -> None:
        self.known = {each: found for each, found in self.known.items() if found[0] >= now - self.window}
        if what == "click":
            at, of, clicked = self.known.get(key, (0.0, 0, None))
            if clicked is None:
                self.counts = self.counts.plus(Joins(unmatched=1))
            elif clicked:
                self.counts = self.counts.plus(Joins(duplicate=1))
            else:
                self.counts = self.counts.plus(Joins(joined=1))
                self.lines += late(key, of)
                self.known[key] = (at, of, True)
        else:
            self.lines += impression(key, city, int(what == "clicked"))
            at, of, clicked = self.known.setdefault(key, (now, city, False))
            self.known[key] = (at, of, bool(clicked) or what == "clicked")


EVENT = st.tuples(st.sampled_from(["impression", "click", "click", "clicked"]), st.integers(0, 4), st.integers(0, 9))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.lists(EVENT, min_size=1, max_size=5), st.booleans()), max_size=12))
def test_clicks_are_joined_as_a_dictionary_joins_them(
    groups: list[tuple[int, list[tuple[str, int, int]], bool]],
) -> None:
    oracle, now = Oracle(10), 0.0
    with tempfile.TemporaryDirectory() as folder:
        log = ClickLog(Path(folder), FOR_EVER, join=(JSONL, 10))
        sums = Joins()
        for number, (passed, events, restart) in enumerate(groups):
            now += passed
            before = oracle.lines.count(b"\n")
            for event in events:
                oracle.take(now, *event)
            text = b"".join(
                click(key) if what == "click" else impression(key, city, int(what == "clicked"))
                for what, key, city in events
            )
            request = clicks_of(text, 1000, f"{number}")
            end = oracle.lines.count(b"\n")
            # The repeat within the group, and after it, joins nothing again.
            first, again = log.append([request, request], now)
            assert first == (before, end, False)
            assert again == (before, end, True)
            if restart:
                sums = sums.plus(log.joins)
                log.close()
                log = ClickLog(Path(folder), FOR_EVER, join=(JSONL, 10))
        with closing(log):
            assert log.read(0, log.kept.end, 1 << 30).text == oracle.lines
            assert sums.plus(log.joins) == oracle.counts


def test_an_impression_is_forgotten_with_its_window(tmp_path: Path) -> None:
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 10))) as log:
        log.append([clicks_of(impression(1) + impression(2), 1000)], 0.0)
        log.append([clicks_of(click(1), 1000)], 10.0)
        log.append([clicks_of(click(2), 1000)], 10.5)

        assert log.joins == Joins(joined=1, unmatched=1)
        assert log._file.db.execute("select count(*) from shown").fetchone() == (0,)


def test_the_oldest_impressions_go_before_their_time_where_there_are_too_many(tmp_path: Path) -> None:
    with closing(ClickLog(tmp_path / "three", FOR_EVER, join=(JSONL, 10))) as log:
        log.append([clicks_of(b"".join(map(impression, range(3))), 1000)], 0.0)
        assert log._impressions is not None
        most = log._impressions.bytes
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 10), most_impressions=most)) as log:
        for number in range(5):
            log.append([clicks_of(impression(number), 1000)], float(number))
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 10), most_impressions=most)) as log:
        log.append([clicks_of(b"".join(map(click, range(5))), 1000)], 5.0)

        # What comes may be more until the next lines come.
        assert log.joins == Joins(joined=3, unmatched=2, crowded_out=1)
        log.append([clicks_of(b"".join(map(click, range(5))), 1000)], 5.0)
        assert log.joins == Joins(joined=3, unmatched=4, duplicate=3, crowded_out=1)


def test_a_request_that_was_refused_counts_no_impressions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impressions, "JOINED_BYTES", len(late(1)))
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 10))) as log:
        log.append([clicks_of(impression(1) + impression(2), 1000)], 0.0)
        assert log._impressions is not None
        before = log._impressions.bytes
        log.append([clicks_of(impression(4) + click(1) + click(2), 1000)], 0.0)

        assert log._impressions.bytes == before
        assert before == log._file.db.execute("select sum(bytes) from shown").fetchone()[0]


def test_impressions_that_are_too_old_are_deleted_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impressions, "_FORGOTTEN_AT_ONCE", 4)
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 10))) as log:
        log.append([clicks_of(b"".join(map(impression, range(10))), 1000)], 0.0)
        left = []
        for _ in range(3):
            log.append([], 11.0)
            left += log._file.db.execute("select count(*) from shown").fetchone()
        assert log._impressions is not None

        assert (left, log._impressions.bytes, log.joins) == ([6, 2, 0], 0, Joins())


def test_an_impression_that_comes_again_with_its_click_is_clicked_once(tmp_path: Path) -> None:
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 10))) as log:
        for text in (impression(1), impression(1, clicked=1), impression(1), click(1)):
            log.append([clicks_of(text, 1000)], 0.0)

        assert log.joins == Joins(duplicate=1)
        assert log.kept.end == 3


def test_a_log_that_joins_no_more_keeps_no_impressions(tmp_path: Path) -> None:
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 10))) as log:
        log.append([clicks_of(impression(1), 1000)], 0.0)
    with closing(ClickLog(tmp_path, FOR_EVER)) as log:
        assert log._file.db.execute("select name from sqlite_master where name = 'shown'").fetchall() == []
        log.append([clicks_of(click(1), 1000)], 0.0)
        assert log.read(0, 2, 1000).text == impression(1) + click(1)


def test_a_request_whose_impressions_are_too_much_together_is_refused_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(impressions, "JOINED_BYTES", 2 * len(late(1)))
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 10))) as log:
        log.append([clicks_of(impression(1) + impression(2) + impression(3), 1000)], 0.0)
        much = clicks_of(impression(4) + click(1) + click(2) + click(3), 1000, "k")

        refused, taken = log.append([much, clicks_of(click(4) + click(1), 1000)], 0.0)

        assert isinstance(refused, TooMuchJoined)
        assert str(refused).endswith("bytes together; send fewer clicks in one request")
        assert (taken, log.joins) == (Appended(3, 4), Joins(joined=1, unmatched=1))
        # In two requests they are taken, the second one under the key that was not used up.
        log.append([clicks_of(click(2), 1000), clicks_of(impression(4) + click(3) + click(4), 1000, "k")], 0.0)
        assert log.read(4, log.kept.end, 1000).text == late(2) + impression(4) + late(3) + late(4)


def test_a_click_with_more_than_its_id_is_joined_and_one_that_cannot_be_is_counted(tmp_path: Path) -> None:
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 10))) as log:
        shown = impression(1) + b'{"id": 2.0, "city": "0", "n": 1, "click": 0}\n'
        clicked = b'{"id": "1", "click": 1, "at": 1700000000}\n{"id": 2.0, "click": 1}\n{"click": 1}\n'

        log.append([clicks_of(shown + clicked, 1000)], 0.0)

        assert log.joins == Joins(joined=1, unmatched=2)
        assert log.read(0, log.kept.end, 1000).text == shown + late(1)


def test_one_click_is_taken_however_long_its_impression_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impressions, "JOINED_BYTES", 1)
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 10))) as log:
        log.append([clicks_of(impression(1) + click(1), 1000)], 0.0)

        assert log.joins == Joins(joined=1)


def test_requests_whose_impressions_are_much_together_are_several_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(click_log, "TRANSACTION_BYTES", 2 * len(late(1)))
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 10))) as log:
        log.append([clicks_of(b"".join(map(impression, range(5))), 1000)], 0.0)
        requests = [clicks_of(click(number), 1000) for number in range(5)]

        assert log.append(requests, 0.0) == [Appended(5, 6), Appended(6, 7)]
        assert log.append(requests[2:], 0.0) == [Appended(7, 8), Appended(8, 9)]


CSV_ROW = b"1,0,1,x\n"


@pytest.mark.parametrize(
    ("before", "row", "after", "clicked"),
    [
        (CSV, CSV_ROW, JSONL, click(1)),
        (JSONL, impression(1), CSV, b"1,1,,\n"),
        (CSV, CSV_ROW, LateClicks("csv", COLUMNS[:3], "id", "click", "n", CITY), b"1,1,\n"),
        (CSV, CSV_ROW, LateClicks("csv", (*COLUMNS, "age"), "id", "click", "n", CITY), b"1,1,,,\n"),
        (JSONL, impression(1), LateClicks("jsonl", (), "id", "clicked", "n", CITY), b'{"id": "1", "clicked": 1}\n'),
        (JSONL, impression(1), LateClicks("jsonl", (), "id", "click", "shown", CITY), click(1)),
        (
            JSONL,
            impression(1),
            LateClicks("jsonl", (), "city", "click", "n", frozenset({"user"})),
            b'{"city": "1", "click": 1}\n',
        ),
    ],
)
def test_impressions_of_an_earlier_configuration_are_forgotten_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, before: LateClicks, row: bytes, after: LateClicks, clicked: bytes
) -> None:
    with closing(ClickLog(tmp_path, FOR_EVER, join=(before, 10))) as log:
        log.append([clicks_of(row, 1000)], 0.0)
    for _ in range(2):
        with closing(ClickLog(tmp_path, FOR_EVER, join=(after, 10))) as log:
            assert log.append([clicks_of(clicked, 1000)], 0.0) == [(1, 1, False)]
            assert log.joins == Joins(unmatched=1)
    assert caplog.text.count("have changed: 1 impressions are forgotten") == 1


def test_a_row_too_deep_to_be_rewritten_loses_its_click_alone(tmp_path: Path) -> None:
    deep = b'{"id": "1", "n": 1, "click": 0, "x": ' + b"[" * 1000 + b"]" * 1000 + b"}\n"
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 10))) as log:
        log.append([clicks_of(deep + click(1) + impression(2), 10_000)], 0.0)

        assert log.kept.end - log.joins.joined == 2
        assert sum(log.joins) == 1


_SENDS_WITHOUT_AN_END = """
import sys
from pathlib import Path
from elastic_ctr.sources.intake.click_log import ClickLog, Retention
from elastic_ctr.sources.intake.join import LateClicks
from elastic_ctr.sources.intake.request_lines import clicks_of

rules = LateClicks("jsonl", (), "id", "click", "n", frozenset({"city"}))
log = ClickLog(Path(sys.argv[1]), Retention(1e9, 1 << 40), 1000, join=(rules, 1e9))
number = int(sys.argv[2])
print("began", flush=True)
while True:
    # Impression and click come in one transaction, or in two; every request comes twice.
    shown = clicks_of(b'{"id": "%d", "city": "0", "n": 1, "click": 0}\\n' % number, 1 << 20, f"s{number}")
    clicked = clicks_of(b'{"id": "%d", "click": 1}\\n' % number, 1 << 20, f"c{number}")
    for group in ([shown, clicked, clicked],) if number % 2 else ([shown], [clicked, shown], [clicked]):
        log.append(group, 0.0)
    print(number, flush=True)
    number += 1
"""


def test_a_killed_intake_neither_loses_nor_doubles_a_joined_click(tmp_path: Path) -> None:
    acknowledged = -1
    for kill in range(4):
        # It begins with the one that may be there by half.
        command = [sys.executable, "-c", _SENDS_WITHOUT_AN_END, str(tmp_path), str(acknowledged + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "began\n"
            said = "".join(child.stdout.readline() for _ in range(20 + 17 * kill))
            os.kill(child.pid, signal.SIGKILL)
            said += child.stdout.read()
        with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 1e9))) as log:
            lines = log.read(0, log.kept.end, 1 << 30).text.splitlines(keepends=True)
        acknowledged = int(said[: said.rindex("\n")].splitlines()[-1])
        complete = [line for number in range(acknowledged + 1) for line in (impression(number), late(number))]
        assert lines[: len(complete)] == complete
        # Behind them the last one: nothing, its impression, or both; of an odd one never the half.
        rest = lines[len(complete) :]
        more = [
            line for number in range(acknowledged + 1, acknowledged + 3) for line in (impression(number), late(number))
        ]
        assert rest == more[: len(rest)]
        if len(rest) % 2:
            assert json.loads(rest[-1])["id"] == str(acknowledged + 1 + len(rest) // 2)
            assert (acknowledged + 1 + len(rest) // 2) % 2 == 0


def test_requests_that_a_transaction_has_no_room_for_are_in_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(click_log, "TRANSACTION_BYTES", 2 * len(late(1)))
    monkeypatch.setattr(impressions, "JOINED_BYTES", 3 * len(late(1)))
    data = {
        "slots": None, "format": "jsonl", "label": "click", "shows": "n",
        "stream": {"lateClicks": True, "join": {"key": "id"}},
    }  # fmt: skip
    with desk(intake_file(tmp_path, data, FEATURES)) as door, ThreadPoolExecutor(20) as pool:
        door.post(b"".join(map(impression, range(24))))
        answers = list(pool.map(lambda number: door.post(click(number)), range(20)))
        much = door.post(b"".join(map(click, range(20, 24))))

        assert {each.status_code for each in answers} == {200}
        ends = sorted((each.json()["first"], each.json()["end"]) for each in answers)
        assert ends == [(number, number + 1) for number in range(24, 44)]
        for number, each in enumerate(answers):
            first = each.json()["first"]
            assert door.client.get(f"/v1/log/lines?start={first}&stop={first + 1}").content == late(number)
        assert (much.status_code, door.status()["refused"]) == (413, 1)
        assert "send fewer clicks in one request" in much.json()["error"]


def test_the_intake_joins_late_clicks_that_are_posted_and_counts_them(tmp_path: Path) -> None:
    data = {
        "slots": None, "format": "jsonl", "label": "click", "shows": "n",
        "stream": {"lateClicks": True, "join": {"key": "id", "windowSeconds": 60}},
    }  # fmt: skip
    with desk(intake_file(tmp_path, data, FEATURES)) as door:
        shown = door.post(impression(1) + impression(2)).json()
        clicked = door.post(click(1) + click(1) + click(3), Idempotency_Key="k").json()
        repeated = door.post(click(1) + click(1) + click(3), Idempotency_Key="k").json()
        nothing = door.post(click(1)).json()

        assert [(each["first"], each["end"]) for each in (shown, clicked, repeated, nothing)] == [
            (0, 2), (2, 3), (2, 3), (3, 3)
        ]  # fmt: skip
        assert door.client.get("/v1/log/lines?start=2&stop=3").content == late(1)
        assert door.status()["lateClicks"] == {"joined": 1, "unmatched": 1, "duplicate": 2, "crowdedOut": 0}
        metrics = door.metrics()
        found = {
            name: metrics[f"elastic_ctr_intake_late_clicks_{name}_total"]
            for name in ("joined", "unmatched", "duplicate")
        }
        assert found == {"joined": 1, "unmatched": 1, "duplicate": 2}
