"""The reader of an intake's log, against a real intake in this process."""

import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from credentials import tokens
from elastic_ctr.sources.intake import intake_api
from elastic_ctr.sources.streams.intake import IntakeLog
from elastic_ctr.sources.streams.interface import Kept, Lines
from elastic_ctr.sources.streams.open import open_stream
from elastic_ctr.store.backends import NotInStore, RetryPolicy, StoreError, StoreUnavailable
from ports import free_port
from sources.intake.desk import TOKEN, Desk, desk, intake_file

PARTITION = "clicks-00000000"


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Desk]:
    with desk(intake_file(tmp_path)) as made:
        yield made


@pytest.fixture
def stream(door: Desk) -> Iterator[IntakeLog]:
    found = open_stream(f"intake://{door.netloc}", tokens=tokens(TOKEN))
    assert isinstance(found, IntakeLog)
    with closing(found):
        yield found


def text_of(lines: Lines) -> bytes:
    with lines.raw as raw:
        return raw.read()


def numbered(start: int, stop: int) -> bytes:
    return b"".join(b"%d\n" % number for number in range(start, stop))


def test_a_range_is_the_lines_of_its_offsets_whenever_it_is_read(
    door: Desk, stream: IntakeLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (stream.partitions(), stream.topic_before) == ({door.partition: Kept(0, 0)}, None)
    for number in range(0, 200, 10):
        door.post(numbered(number, number + 10))

    assert stream.partitions() == {door.partition: Kept(0, 200)}
    for piece_bytes in (1 << 20, 1):
        monkeypatch.setattr(intake_api, "PIECE_BYTES", piece_bytes)
        for start, stop in ((0, 200), (5, 27), (199, 200), (30, 30), (5, 27)):
            lines = stream.read(door.partition, start, stop)
            assert lines.gone == 0
            places = [lines.offset_of(place) for place in range(len(numbered(start, stop)))]
            assert text_of(lines) == numbered(start, stop)
            assert places == [number for number in range(start, stop) for _ in range(len(str(number)) + 1)]


def test_a_line_is_known_by_its_offset_though_it_is_no_row(door: Desk, stream: IntakeLog) -> None:
    door.post(b"1 0 5:0\nno row\n")

    lines = stream.read(door.partition, 0, 2)

    assert lines.offset_of(text_of(lines).index(b"no row")) == 1


def test_offsets_that_retention_has_dropped_are_counted(tmp_path: Path) -> None:
    now = [0.0]
    with desk(intake_file(tmp_path, retention_hours=1), clock=lambda: now[0]) as door:
        door.post(numbered(0, 7))
        now[0] = 3601.0
        door.post(numbered(7, 10))
        with closing(open_stream(f"intake://{door.netloc}", tokens=tokens(TOKEN))) as stream:
            assert stream.partitions() == {door.partition: Kept(7, 10)}
            some, none = stream.read(door.partition, 5, 9), stream.read(door.partition, 2, 4)

            assert (some.gone, some.offset_of(0), some.offset_of(2)) == (2, 7, 8)
            assert text_of(some) == b"7\n8\n"
            assert (text_of(none), none.gone) == (b"", 2)


def test_an_intake_learns_with_which_offset_training_goes_on(door: Desk, stream: IntakeLog) -> None:
    door.post(numbered(0, 10))
    log = door.intake.log
    assert log.unread_bytes() == log.bytes

    with closing(open_stream(f"intake://{door.netloc}", tokens=tokens(TOKEN), own=True)) as own:
        found = []
        for place in (10, 5, 11):
            own.keep_from({"others": 1, door.partition: place}, {})
            found.append(log.unread_bytes())
    assert found == [0, log.bytes // 2, log.bytes // 2]
    # A release that reads the intake of another one says nothing of its own training, nor does one that reads a range.
    stream.keep_from({door.partition: 10}, {})
    text_of(stream.read(door.partition, 9, 10))
    assert log.needed == 5


def test_lines_that_only_a_recovery_may_need_are_kept_and_are_not_unread(door: Desk) -> None:
    door.post(numbered(0, 10))
    with closing(open_stream(f"intake://{door.netloc}", tokens=tokens(TOKEN), own=True)) as own:
        own.keep_from({door.partition: 2}, {door.partition: 10})

    log = door.intake.log
    assert (log.needed, log.unread_bytes()) == (2, 0)


def test_a_long_range_is_read_in_pieces(door: Desk, stream: IntakeLog) -> None:
    for first in range(0, 30, 10):
        door.post(numbered(first, first + 10))

    whole = stream.read(door.partition, 3, 30)
    one = stream.read(door.partition, 3, 30, 1)
    other = stream.read(door.partition, one.following or 0, 30, 1 << 20)

    assert (whole.following, other.following) == (30, 30)
    assert text_of(one) + text_of(other) == text_of(whole)


def test_an_intake_with_another_token_is_unavailable_and_not_an_error_for_good(door: Desk) -> None:
    with closing(open_stream(f"intake://{door.netloc}", tokens=tokens("former"), own=True)) as own:
        with pytest.raises(StoreUnavailable, match="does not take the internal token of its readers"):
            own.keep_from({door.partition: 0}, {})
        with pytest.raises(StoreUnavailable, match="give them a token file of its release"):
            own.partitions()


def test_a_range_that_was_never_written_is_refused(door: Desk, stream: IntakeLog) -> None:
    door.post(b"a\n")

    with pytest.raises(
        StoreError, match="ends at offset 1 where 5 had been seen: an older copy of the log was put back"
    ) as refused:
        stream.read(door.partition, 0, 5)
    assert not isinstance(refused.value, StoreUnavailable)
    with pytest.raises(
        NotInStore, match=f"others is not in intake://.*, whose log is {door.partition}: it was begun anew"
    ):
        stream.read("others", 0, 1)


def test_a_log_that_was_begun_anew_is_another_partition_however_far_it_has_grown(tmp_path: Path) -> None:
    port = free_port()
    with closing(IntakeLog(f"127.0.0.1:{port}", RetryPolicy(0), tokens(TOKEN))) as stream:
        with desk(intake_file(tmp_path / "lost"), port) as door:
            door.post(numbered(0, 10))
            former = door.partition
        with desk(intake_file(tmp_path / "new"), port) as door:
            for end in (5, 12):
                door.post(numbered(door.intake.log.kept.end, end))
                with pytest.raises(NotInStore, match=f"{former} is not in .*, whose log is {door.partition}: it was b"):
                    stream.read(former, 8, 10)
            assert stream.partitions() == {door.partition: Kept(0, 12)}
            assert text_of(stream.read(door.partition, 10, 12)) == numbered(10, 12)
    assert former != door.partition


def test_an_intake_that_goes_and_comes_back_gives_the_same_range(tmp_path: Path) -> None:
    port = free_port()
    with closing(IntakeLog(f"127.0.0.1:{port}", RetryPolicy(0), tokens(TOKEN))) as stream:
        with desk(intake_file(tmp_path), port) as door:
            door.post(numbered(0, 100))
            before = text_of(stream.read(door.partition, 3, 77))
        for call in (stream.partitions, lambda: stream.read(door.partition, 3, 77)):
            with pytest.raises(StoreUnavailable, match=r"does not answer: .*; is the intake running\?"):
                call()
        with desk(intake_file(tmp_path), port):
            assert text_of(stream.read(door.partition, 3, 77)) == before == numbered(3, 77)
            assert stream.partitions() == {door.partition: Kept(0, 100)}


@contextmanager
def another_program(answer: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[IntakeLog]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            """Silent."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with closing(IntakeLog(f"127.0.0.1:{server.server_port}", RetryPolicy(0))) as stream:
                yield stream
        finally:
            server.shutdown()
            thread.join()


def says(status: int, body: bytes = b"", **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        for name, value in {"content-length": str(len(body)), **headers}.items():
            request.send_header(name.replace("_", "-"), value)
        request.end_headers()
        request.wfile.write(body)

    return answer


@pytest.mark.parametrize(
    ("answer", "kind", "sentence"),
    [
        (says(503), StoreUnavailable, "does not answer: it says 503"),
        (says(404), NotInStore, "what answers has no log of clicks"),
        (says(302, location="/"), StoreError, "what answers is no intake"),
        (says(200, b"<html>"), StoreError, "what answers is no intake"),
        (says(200, b'{"partition": "clicks-0", "first": -1, "end": 2}'), StoreError, "what answers is no intake"),
        (says(200, b"{}", content_length="5"), StoreUnavailable, "does not answer"),
    ],
)
def test_a_wrong_answer_in_place_of_the_intake_is_named(
    answer: Callable[[BaseHTTPRequestHandler], None], kind: type[StoreError], sentence: str
) -> None:
    with another_program(answer) as stream, pytest.raises(StoreError, match=sentence) as refused:
        stream.partitions()
    assert type(refused.value) is kind


@pytest.mark.parametrize(
    ("body", "headers", "sentence"),
    [
        (b"a\n", {}, "it names no offsets"),
        (b"a\n", {"first_offset": "0", "next_offset": "9" * 5000}, "it names no offsets"),
        (
            b"a\n",
            {"first_offset": "0", "next_offset": "2"},
            "1 lines came for the offsets 0 to 2, and 0 to 2 were asked",
        ),
        (b"", {"first_offset": "0", "next_offset": "0"}, "0 lines came for the offsets 0 to 0"),
        (b"a\n", {"first_offset": "1", "next_offset": "2"}, None),
        (b"a\nb\nc\n", {"first_offset": "0", "next_offset": "3"}, "3 lines came for the offsets 0 to 3, and 0 to 2"),
    ],
)
def test_lines_that_are_not_those_of_the_range_are_refused(
    body: bytes, headers: dict[str, str], sentence: str | None
) -> None:
    with another_program(says(200, body, log_partition=PARTITION, **headers)) as stream:
        if sentence is None:
            assert stream.read(PARTITION, 0, 2).gone == 1
            return
        with pytest.raises(StoreError, match=sentence) as refused:
            stream.read(PARTITION, 0, 2)
    assert type(refused.value) is StoreError


def test_lines_of_no_partition_are_refused() -> None:
    with (
        another_program(says(200, b"a\n", first_offset="0", next_offset="1")) as stream,
        pytest.raises(StoreError, match="it names no partition"),
    ):
        stream.read(PARTITION, 0, 1)


def test_an_address_names_a_host_and_a_port() -> None:
    with pytest.raises(StoreError, match="intake:// is the intake of a release, and this is none: give its address"):
        open_stream("intake://")
    for wrong in ("intake://host:1/topic", "intake://user@host:1", "intake://host:1?x"):
        with pytest.raises(StoreError, match="is no stream; give kafka"):
            open_stream(wrong)
    stream = open_stream("intake://no-such-host.invalid:8310")
    with closing(stream), pytest.raises(StoreError, match=r"intake://no-such-host\.invalid:8310"):
        stream.partitions()
