import gzip
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_ctr.formats.line import MAX_LINE_BYTES, LineRefused, parse_features, parse_line
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.sources.streams.followed_folder import FollowedFolder
from elastic_ctr.sources.streams.interface import Kept, Lines, Places, TopicBefore, lines_of_messages
from elastic_ctr.store.backends import FileStore, NotInStore
from elastic_ctr.store.backends.source import FileSource
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.calendar.schedule import cut
from elastic_ctr.training.trainer.converter import ClickConversion, convert_task
from elastic_ctr.training.trainer.refusals import QUARANTINED, quarantine

SLOTS = SlotList(("a", "b"))
CONVERSION = ClickConversion(SLOTS, None, MAX_LINE_BYTES)

GOOD = st.tuples(
    st.integers(1, 5),
    st.lists(st.tuples(st.sampled_from([0, 1, 17, 2**64 - 1]), st.sampled_from(["a", "b", "other"])), max_size=4),
).map(lambda drawn: f"{drawn[0]} {drawn[0] // 2} " + " ".join(f"{key}:{slot}" for key, slot in drawn[1]))
BAD = st.sampled_from(["", "0 0 1:a", "1 2 1:a", "1 0 17", "x 0 1:a", "1"])
LINES = st.lists(st.one_of(GOOD, GOOD, BAD), max_size=30)


def task(path: str = "log", start: int = 0, end: int = 0, samples: int = 8) -> control.Task:
    return control.Task(
        id="l-1-0", attempt="l-1-0:1", path=path, start=start, end=end, samples=samples, pass_id="20200401/00"
    )


@dataclass
class Found:
    """The result of a conversion."""

    result: control.TaskResult
    quarantined: list[dict[str, object]]

    @property
    def refused(self) -> dict[str, int]:
        return {each.reason: each.lines for each in self.result.refused}

    @property
    def samples(self) -> list[tuple[str, int, int]]:
        return [(each.line, each.show, each.click) for each in self.result.samples]


def convert(folder: Path, one: control.Task, conversion: ClickConversion = CONVERSION) -> tuple[Found, bytes]:
    target = folder / "tasks" / f"{one.start}.txt"
    found = Found(*convert_task(FileSource(folder), one, conversion, target))
    return found, target.read_bytes()


def test_an_attempt_that_fails_leaves_nothing_in_the_way_of_the_next_one(tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"1 0 17:a\n" * 100_000)[:-20])

    with pytest.raises(Exception, match=r"log\.gz"):
        convert(tmp_path, task("log.gz"))

    assert list((tmp_path / "tasks").iterdir()) == []


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINES, st.integers(1, 60), st.booleans())
def test_ranges_of_a_file_give_what_the_whole_file_gives(
    tmp_path: Path, lines: list[str], task_bytes: int, last_newline: bool
) -> None:
    text = "\n".join(lines) + ("\n" if last_newline and lines else "")
    (tmp_path / "log").write_text(text)
    whole, expected = convert(tmp_path, task())

    parts = [convert(tmp_path, task(start=a, end=b)) for a, b in cut(len(text), task_bytes, whole=False)]

    assert b"".join(part for _, part in parts) == expected
    for name in ("records", "shows", "clicks", "ignored", "padding"):
        assert sum(getattr(counts.result, name) for counts, _ in parts) == getattr(whole.result, name)
    assert sum(sum(counts.refused.values()) for counts, _ in parts) == sum(whole.refused.values())
    assert sorted(str(line) for counts, _ in parts for line in counts.quarantined) == sorted(
        map(str, whole.quarantined)
    )


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(LINES, st.integers(0, 6))
def test_samples_are_accepted_lines_of_the_task_that_serving_takes_as_well(
    tmp_path: Path, lines: list[str], wanted: int
) -> None:
    (tmp_path / "log").write_text("".join(f"{line}\n" for line in lines))

    counts, _ = convert(tmp_path, task(samples=wanted))

    accepted, keyed = set(), 0
    for line in lines:
        try:
            parsed = parse_line(line.encode(), SLOTS, None)
        except LineRefused:
            continue
        accepted.add((" ".join(line.split()[2:]), parsed.show, parsed.click))
        keyed += any(parsed.keys)
    assert len(counts.samples) <= wanted
    assert bool(counts.samples) == bool(wanted and keyed)
    for line, show, click in counts.samples:
        assert (" ".join(line.split()), show, click) in accepted
        assert any(parse_features(line.encode(), SLOTS, None).keys)


def test_a_line_without_features_is_trained_and_is_no_sample(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"1 0\r\n2 1 5:a\r\n1 1 \n")

    counts, text = convert(tmp_path, task())

    assert counts.result.records == 3
    assert text.splitlines()[0] == b"1 1 1 0 1 0 1 0"
    assert counts.samples == [("5:a", 2, 1)]
    assert CONVERSION.sample([line for line, _, _ in counts.samples]).keys.tolist() == [5]


def test_a_line_without_a_key_of_the_slots_is_no_sample_and_one_beside_it_is(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"1 0 5:other\n" * 1000 + b"1 1 6:b\n" + b"1 0 0:a 60:b\n" * 1000)

    counts, _ = convert(tmp_path, task(), ClickConversion(SLOTS, 60, MAX_LINE_BYTES))

    assert (counts.result.records, counts.samples) == (2001, [("6:b", 1, 1)])


def test_leading_zeros_however_many_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(f"{'0' * 5000}2 {'0' * 5000}1 5:a\n")

    counts, _ = convert(tmp_path, task())

    assert counts.samples == [("5:a", 2, 1)]


def test_a_line_too_long_for_a_prediction_is_no_sample(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("1 0 " + "5:other " * (MAX_LINE_BYTES // 8 + 1) + "5:a\n")
    long = ClickConversion(SLOTS, None, 4 * MAX_LINE_BYTES)

    counts, _ = convert_task(FileSource(tmp_path), task(), long, tmp_path / "out.txt")

    assert (counts.records, list(counts.samples)) == (1, [])


def test_a_zipped_file_is_converted_whole(tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"1 0 5:a\n1 1 6:b\n"))

    counts, text = convert(tmp_path, task("log.gz"))

    assert counts.result.records == 2
    assert text == b"1 1 1 0 1 5 1 0\n1 1 1 1 1 0 1 6\n"


def test_a_damaged_zipped_file_is_an_error_that_names_it_and_leaves_no_file(tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(b"1 0 5:a\n" * 100)[:-10])

    with pytest.raises(OSError, match=r"log\.gz is damaged or cut off"):
        convert(tmp_path, task("log.gz"))

    assert not list((tmp_path / "tasks").glob("*.txt"))


class LogInMemory:
    """A stream of messages, of which the first ones are kept no more, that gives as few as it may."""

    url = "kafka://broker:9092/t"
    unit = "records"
    topic_before: TopicBefore | None = None
    notices: tuple[str, ...] = ()

    def __init__(self, messages: list[bytes], first: int) -> None:
        self._messages = messages
        self._first = first
        self.reads = 0

    def know(self, places: Places) -> None:
        """Its partitions keep their names."""

    def files(self) -> dict[str, str]:
        return {}

    def partitions(self) -> dict[str, Kept]:
        return {"t/0": Kept(self._first, len(self._messages))}

    def read(self, partition: str, start: int, stop: int, most_bytes: int | None = None) -> Lines:  # noqa: ARG002
        self.reads += 1
        begin = min(max(start, self._first), stop)
        following = begin + 1 if most_bytes is not None and begin < stop else stop
        texts = [(offset, self._messages[offset]) for offset in range(begin, following)]
        return lines_of_messages(texts, gone=begin - start, following=following)

    def keep_from(self, needed: Mapping[str, int], following: Mapping[str, int]) -> None:
        """It keeps what it has."""

    def close(self) -> None:
        """Nothing is open."""


def test_a_range_of_a_stream_is_converted_piece_by_piece_as_if_it_were_one(tmp_path: Path) -> None:
    stream = LogInMemory([b"1 0 1:a", b"bad", b"1 1 2:a", b"1 0 3:a\nworse", b"2 1 4:b", b"1 0 5:a"], first=1)

    found = Found(*convert_task(stream, task("t/0", start=0, end=5), CONVERSION, tmp_path / "pieces.txt"))

    whole = CONVERSION.blocks(Lines(io.BytesIO(b"1 1 2:a\n1 0 3:a\n2 1 4:b\n"), 0, None), "t/0")
    assert (tmp_path / "pieces.txt").read_bytes() == b"".join(each.text for each in whole)
    assert (found.result.records, found.result.gone, sum(found.refused.values())) == (3, 1, 2)
    assert [each["offset"] for each in found.quarantined] == [1, 3]
    assert stream.reads == 4


def test_lines_that_are_left_out_are_refused_for_their_reason_and_the_others_are_as_without_them(
    tmp_path: Path,
) -> None:
    lines = [b"1 0 1:a\n", b"bad\n", b"1 1 2:a\n", b"1 0 3:a\n", b"2 1 4:b"]
    begins = [0, *np.cumsum([len(line) for line in lines])[:-1].tolist()]
    (tmp_path / "log").write_bytes(b"".join(lines))
    one = task()
    # The first line, the last one, and a place at which no line begins.
    one.left_out.append(control.LeftOut(path="log", offsets=[begins[0], begins[4], begins[2] + 1], reason="skipped"))
    one.left_out.append(control.LeftOut(path="another", offsets=[begins[3]], reason="skipped"))

    found, text = convert(tmp_path, one)

    assert text == b"1 1 1 1 1 2 1 0\n1 1 1 0 1 3 1 0\n"
    assert (found.result.records, found.refused) == (2, {"skipped": 2, "not_a_number": 1})
    assert [(each["offset"], each["reason"], each["line"]) for each in found.quarantined] == [
        (begins[0], "skipped", "1 0 1:a"),
        (begins[1], "not_a_number", "bad"),
        (begins[4], "skipped", "2 1 4:b"),
    ]


def test_a_message_that_is_left_out_is_left_out_with_all_its_lines(tmp_path: Path) -> None:
    stream = LogInMemory([b"1 0 1:a", b"1 1 2:a", b"1 0 3:a\n1 0 4:a", b"2 1 4:b"], first=0)
    one = task("t/0", start=0, end=4)
    one.left_out.append(control.LeftOut(path="t/0", offsets=[2, 9], reason="skipped"))

    found = Found(*convert_task(stream, one, CONVERSION, tmp_path / "out.txt"))

    assert (found.result.records, found.refused) == (3, {"skipped": 2})
    assert [each["offset"] for each in found.quarantined] == [2, 2]


@pytest.mark.parametrize("first", range(4))
def test_lines_of_a_followed_file_are_left_out_by_their_offset_wherever_the_range_begins(
    tmp_path: Path, first: int
) -> None:
    lines = [b"1 0 1:a\n", b"1 1 2:a\n", b"1 0 3:a\n", b"2 1 4:b\n"]
    begins = [0, *np.cumsum([len(line) for line in lines]).tolist()]
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "clicks").write_bytes(b"".join(lines))
    one = task("clicks", start=begins[first], end=begins[-1])
    # The last line, and one before the range.
    left_out = control.LeftOut(path="clicks", offsets=[begins[first - 1] if first else 99, begins[3]], reason="skipped")
    one.left_out.append(left_out)

    found = Found(*convert_task(FollowedFolder(tmp_path / "log"), one, CONVERSION, tmp_path / "out.txt"))

    assert (found.result.records, found.refused) == (3 - first, {"skipped": 1})
    assert [each["offset"] for each in found.quarantined] == [begins[3]]


def test_a_task_of_several_files_has_the_records_of_all_and_names_the_file_of_each_refused_line(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"1 0 1:a\nbad\n")
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"1 1 2:a\n1 0 3:a\n"))
    (tmp_path / "c").write_bytes(b"0 0 4:a\n1 0 5:a\nworse\n2 1 6:b")
    one = task(end=20)
    one.further.extend([control.Part(path="b.gz"), control.Part(path="c", start=1, end=0)])
    # Offsets are of their file.
    one.left_out.append(control.LeftOut(path="b.gz", offsets=[8], reason="skipped"))
    store = FileStore(tmp_path / "store")

    found, text = convert(tmp_path, one)
    quarantine(store, one, found.quarantined)

    assert text == b"".join(
        b"1 %d 1 %d 1 %d 1 %d\n" % each for each in ((1, 0, 1, 0), (1, 1, 2, 0), (1, 0, 5, 0), (2, 1, 0, 6))
    )
    assert found.result.records == 4
    assert dict(found.result.refused_of) == {"log": 1, "b.gz": 1, "c": 1}
    read = {
        file.name: [json.loads(line)["offset"] for line in file.read_text().splitlines()]
        for file in (tmp_path / "store/quarantine/20200401/00").iterdir()
    }
    assert read == {"log-0.jsonl": [8], "b.gz-0.jsonl": [8], "c-1.jsonl": [16]}


def test_a_file_that_is_gone_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(NotInStore, match="log is not in"):
        convert(tmp_path, task())


def test_refused_lines_are_counted_by_reason_with_three_examples(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("1 0 5:a\n" + "".join(f"1 0 {n}\n" for n in range(5)) + "0 0 1:a\n")

    counts, _ = convert(tmp_path, task())

    assert counts.refused == {"no_colon": 5, "show_zero": 1}
    assert [(r.reason, r.lines, list(r.examples)) for r in counts.result.refused] == [
        ("no_colon", 5, ["1 0 0", "1 0 1", "1 0 2"]),
        ("show_zero", 1, ["0 0 1:a"]),
    ]
    assert counts.result.records == 1


def test_the_quarantine_file_has_each_refused_line_with_its_offset(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "part").write_bytes(b"1 0 5:a\n1 0 17\n\xff 0\n")
    counts, _ = convert(tmp_path, task("logs/part"))
    store = FileStore(tmp_path / "store")

    quarantine(store, task("logs/part"), counts.quarantined)

    lines = store.get_bytes("quarantine/20200401/00/logs_part-0.jsonl").splitlines()
    assert [(d["offset"], d["reason"], d["line"]) for d in map(json.loads, lines)] == [
        (8, "no_colon", "1 0 17"),
        (15, "binary", "\\xff 0"),
    ]


def test_only_so_many_refused_lines_are_kept_and_all_are_counted(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("1 0 17\n" * (QUARANTINED + 500))

    counts, _ = convert(tmp_path, task())

    assert counts.refused == {"no_colon": QUARANTINED + 500}
    assert len(counts.quarantined) == QUARANTINED


def test_without_a_refused_line_there_is_no_quarantine_file(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")

    quarantine(store, task(), [])

    assert list(store.walk("quarantine")) == []


KEYS = st.sampled_from([0, 1, 2, 61, 2**63, 2**64 - 2])
SAMPLES = st.lists(st.lists(st.tuples(KEYS, st.sampled_from(["a", "b", "other"])), min_size=1, max_size=5), max_size=6)


@given(SAMPLES, st.sampled_from([None, 60]))
def test_pooled_values_are_what_a_plain_loop_sums(samples: list[list[tuple[int, str]]], sparse_dim: int | None) -> None:
    lines = [" ".join(f"{key}:{slot}" for key, slot in sample) for sample in samples]

    sample = ClickConversion(SLOTS, sparse_dim, MAX_LINE_BYTES).sample(lines)

    values = np.stack([np.arange(len(sample.keys)), np.full(len(sample.keys), 2.0)], axis=1).astype(np.float32)
    of = dict(zip(sample.keys.tolist(), values, strict=True))
    expected = np.zeros((len(lines) * len(SLOTS), 2), np.float32)
    for number, features in enumerate(samples):
        for feasign, slot in features:
            key = feasign if sparse_dim is None else feasign % sparse_dim
            if slot in SLOTS and key:
                expected[number * len(SLOTS) + SLOTS.index(slot)] += of[key]
    np.testing.assert_allclose(sample.pooled(values), expected.reshape(len(lines), len(SLOTS) * 2))
    assert sample.keys.tolist() == sorted(set(of))
    assert 0 not in of


@given(st.lists(st.integers(0, 10**6), max_size=300), st.integers(1, 2**32 - 1), st.integers(0, 40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
def test_shuffled_records_are_the_same_in_an_order_that_the_seed_determines(
    tmp_path: Path, keys: list[int], seed: int, bytes_more: int
) -> None:
    (tmp_path / "log").write_text("".join(f"1 0 {key + 1}:a{' ' * bytes_more}\n" for key in keys))
    one = task()
    _, in_order = convert(tmp_path, one)
    one.shuffle_seed = seed

    _, shuffled = convert(tmp_path, one)
    _, again = convert(tmp_path, one)

    assert sorted(shuffled.splitlines()) == sorted(in_order.splitlines())
    assert shuffled == again
    assert len(set(keys)) < 20 or shuffled != in_order


def test_records_of_more_bytes_than_a_piece_are_shuffled_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_ctr.features.record_text._PIECE", 64)
    (tmp_path / "log").write_text("".join(f"1 0 {'7:a ' * (key % 40)}{key}:b\n" for key in range(1, 500)))
    one = task()
    _, in_order = convert(tmp_path, one)
    one.shuffle_seed = 5

    _, shuffled = convert(tmp_path, one)

    assert sorted(shuffled.splitlines()) == sorted(in_order.splitlines())
    assert shuffled != in_order
