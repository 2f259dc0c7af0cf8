"""The intake behind its own HTTP server, in this process."""

import asyncio
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from credentials import tokens
from elastic_ctr.runtime.auth import bearer
from elastic_ctr.runtime.lock import StateInUse
from elastic_ctr.runtime.status.intake_status import IntakeStatus
from elastic_ctr.sources.intake import intake_api
from elastic_ctr.sources.intake.click_log import JOINED_LINES, ClickLog, LogUnwritable, Piece, Retention
from elastic_ctr.sources.intake.disk_bytes import bytes_of_row
from elastic_ctr.sources.intake.group_commit import GroupCommit
from elastic_ctr.sources.intake.request_lines import Clicks
from ports import free_port
from sources.intake.desk import TOKEN, Desk, desk, intake_file
from status_documents import complete


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Desk]:
    with desk(intake_file(tmp_path, max_body_bytes=1000, data={"maxLineBytes": 64})) as made:
        yield made


def text_of(door: Desk, start: int, stop: int) -> bytes:
    answer = door.client.get("/v1/log/lines", params={"start": start, "stop": stop})
    assert answer.status_code == 200, answer.text
    return answer.content


def test_its_status_is_the_document_of_an_intake(door: Desk) -> None:
    door.post(b"1 0 5:a")

    found = complete(IntakeStatus, door.client.get("/status").content)

    assert (found.partition, found.end, found.accepted.records, found.topic) == (door.partition, 1, 1, None)


def test_lines_that_are_posted_are_read_under_the_offsets_of_the_answer(door: Desk) -> None:
    first, second = door.post(b"1 0 5:0\n1 1 6:1\n"), door.post(b"1 0 7:0")

    assert (first.status_code, first.json()) == (200, {"partition": door.partition, "first": 0, "end": 2})
    assert second.json() == {"partition": door.partition, "first": 2, "end": 3}
    assert door.client.get("/v1/log").json() == {"partition": door.partition, "first": 0, "end": 3}
    assert text_of(door, 0, 3) == b"1 0 5:0\n1 1 6:1\n1 0 7:0\n"
    assert text_of(door, 1, 2) == b"1 1 6:1\n"
    assert text_of(door, 3, 3) == b""


def test_lines_that_are_no_rows_are_taken_and_empty_ones_are_not(door: Desk) -> None:
    assert door.post(b"\n \nno row\n\n\xff\xfe\r\n").json()["end"] == 2
    assert text_of(door, 0, 2) == b"no row\n\xff\xfe\r\n"


def test_a_repeat_with_the_same_key_has_the_same_answer_and_doubles_nothing(door: Desk) -> None:
    door.post(b"a\n")
    answers = [door.post(b"b\nc\n", Idempotency_Key="5f1a").json() for _ in range(3)]

    assert answers[0] == {"partition": door.partition, "first": 1, "end": 3}
    assert answers[1] == answers[2] == {**answers[0], "repeated": True}
    assert text_of(door, 0, 3) == b"a\nb\nc\n"
    assert door.client.get("/v1/log").json()["end"] == 3


def refused(door: Desk, text: Any, **headers: str) -> tuple[int, str]:
    answer = door.post(text, **headers)
    return answer.status_code, answer.json()["error"]


@pytest.mark.parametrize(
    ("body", "headers", "status", "sentence"),
    [
        (b"", {}, 400, "the body has no lines; send one or more lines of data.format"),
        (b"\n\n", {}, 400, "the body has no lines"),
        (b"a\nb\0\n", {}, 400, "line 2 has a NUL byte"),
        (b"a\n" + b"b" * 65, {}, 400, "line 2 has 65 bytes, and 64 are the most; shorten it, or raise data.maxLineBytes"),
        (b"a\n" * 501, {}, 413, "the body has 1002 bytes; 1000 are the most"),
        (iter([b"a\n" * 400, b"a\n" * 101]), {}, 413, "the body has more than 1000 bytes"),
        (b"a\n", {"Idempotency-Key": "k" * 256}, 400, "Idempotency-Key has 1 to 255 printable ASCII characters"),
        (b"a\n", {"Content-Encoding": "gzip"}, 415, "Content-Encoding gzip is not read here; send the lines as they are"),
        (b"a\n", {"authorization": "Bearer wrong"}, 401, "this call needs the header"),
    ],
)  # fmt: skip
def test_a_request_that_is_wrong_is_refused_with_a_sentence_and_writes_nothing(
    door: Desk, body: Any, headers: dict[str, str], status: int, sentence: str
) -> None:
    found, said = refused(door, body, **headers)

    assert found == status
    assert sentence in said
    assert door.intake.log.kept.end == 0
    assert door.metrics()["elastic_ctr_intake_refused_requests_total"] == 1


def test_a_key_with_other_lines_is_refused(door: Desk) -> None:
    door.post(b"a\n", Idempotency_Key="k")

    status, said = refused(door, b"b\n", Idempotency_Key="k")

    assert (status, "came before with other lines" in said) == (422, True)
    assert door.intake.log.kept.end == 1


@pytest.mark.parametrize(
    ("query", "status", "sentence"),
    [
        ("", 400, "start: Field required; ask for /v1/log/lines?start=OFFSET&stop=OFFSET"),
        ("start=0", 400, "stop: Field required"),
        ("start=-1&stop=0", 400, "start: Input should be greater than or equal to 0"),
        ("start=a&stop=1", 400, "start: Input should be a valid integer"),
        ("start=0&stop=9223372036854775808", 400, "stop: Input should be less than"),
        ("start=2&stop=1", 400, "start 2 is behind stop 1; swap them"),
        ("start=0&stop=2", 416, "the log ends at offset 1, before 2"),
    ],
)
def test_a_range_that_is_wrong_is_refused_with_a_sentence(door: Desk, query: str, status: int, sentence: str) -> None:
    door.post(b"a\n")

    answer = door.client.get(f"/v1/log/lines?{query}")

    assert answer.status_code == status
    assert sentence in answer.json()["error"]


@pytest.mark.parametrize(
    ("told", "headers", "status", "sentence"),
    [
        ({"needed": {"P": 1}}, {"authorization": "Bearer wrong"}, 401, "this call needs the header"),
        ({"needed": {"P": -1}}, {}, 400, "needed.P: Input should be greater than or equal to 0"),
        ({"needed": {"P": 2**63}}, {}, 400, "needed.P: Input should be less than"),
        ({"needed": {"P": 1.5}}, {}, 400, "needed.P: Input should be a valid integer"),
        ({}, {}, 400, "needed: Field required"),
        ({"needed": {"x" * 70_000: 1}}, {}, 413, "bytes; 65536 are the most"),
    ],
)
def test_needed_offsets_without_the_token_or_of_a_wrong_form_are_refused(
    door: Desk, told: dict[str, Any], headers: dict[str, str], status: int, sentence: str
) -> None:
    door.post(b"a\nb\n")

    answer = door.client.post("/v1/log/needed", json=told, headers=headers)

    assert answer.status_code == status
    assert sentence in answer.json()["error"]
    assert door.status()["neededFrom"] == 0


def test_offsets_of_another_log_and_such_as_are_not_there_yet_are_not_taken(door: Desk) -> None:
    door.post(b"a\nb\n")

    taken = [
        door.client.post("/v1/log/needed", json={"needed": needed}).json()
        for needed in ({"others": 1}, {door.partition: 3}, {"others": 7, door.partition: 2})
    ]

    assert [each["taken"] for each in taken] == [False, False, True]
    assert door.status()["neededFrom"] == 2


def test_a_length_that_is_none_is_refused(door: Desk) -> None:
    host, _, port = door.netloc.partition(":")
    for length in ("-1", "1e3", "9" * 30 + "x"):
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(
                f"POST /v1/clicks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: {length}\r\n\r\n".encode()
            )
            assert raw.makefile("rb").readline().startswith(b"HTTP/1.1 400 ")
    assert door.intake.log.kept.end == 0


def test_a_body_that_does_not_come_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_api, "BODY_SECONDS", 0.05)
    with desk(intake_file(tmp_path)) as door:
        host, _, port = door.netloc.partition(":")
        with socket.create_connection((host, int(port))) as raw:
            raw.sendall(
                f"POST /v1/clicks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 10\r\n\r\n1 0".encode()
            )
            assert raw.makefile("rb").readline().startswith(b"HTTP/1.1 408 ")
        assert door.intake.log.kept.end == 0


def test_a_client_that_breaks_off_in_its_body_is_counted_as_refused(
    door: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    host, _, port = door.netloc.partition(":")
    with socket.create_connection((host, int(port))) as raw:
        raw.sendall(
            f"POST /v1/clicks HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\ncontent-length: 10\r\n\r\n1 0".encode()
        )
    while door.status()["refused"] == 0:
        pass

    assert door.intake.log.kept.end == 0
    assert [each for each in caplog.records if each.exc_info] == []


def test_more_bodies_than_memory_is_for_are_sent_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake_api, "UNDER_WAY_BYTES", 1000)
    with desk(intake_file(tmp_path)) as door:
        answer = door.post(b"x" * 1001)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert answer.json()["error"] == "too many clicks are under way; send them again in a second"
        # What was refused has given its share back.
        assert [door.post(b"x" * 900).status_code for _ in range(3)] == [200] * 3


def test_requests_that_come_together_share_a_transaction(door: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    groups, entered, go = [], threading.Event(), threading.Event()
    append = ClickLog.append

    def slow(log: ClickLog, requests: Any, now: float) -> Any:
        groups.append(len(requests))
        entered.set()
        assert go.wait(30)
        return append(log, requests, now)

    monkeypatch.setattr(ClickLog, "append", slow)
    with ThreadPoolExecutor(9) as pool:
        first = pool.submit(door.post, b"0\n")
        assert entered.wait(30)
        others = [pool.submit(door.post, b"%d\n" % number) for number in range(1, 9)]
        while len(door.intake.commits._waiting) < 8:
            pass
        go.set()
        answers = [each.result().json() for each in (first, *others)]

    assert groups[:2] == [1, 8]
    assert sorted((each["first"], each["end"]) for each in answers) == [(n, n + 1) for n in range(9)]
    for number, each in enumerate(answers):
        assert text_of(door, each["first"], each["end"]) == b"%d\n" % number


def test_a_request_that_the_log_cannot_bear_is_answered_alone_and_the_writer_goes_on(
    door: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    entered, go = threading.Event(), threading.Event()
    append = ClickLog.append

    def broken(log: ClickLog, requests: Any, now: float) -> Any:
        entered.set()
        assert go.wait(30)
        if any(each.text == b"unbearable\n" for each in requests):
            raise RuntimeError("a fault of the program")
        return append(log, requests, now)

    monkeypatch.setattr(ClickLog, "append", broken)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(door.post, b"0\n")
        assert entered.wait(30)
        others = [pool.submit(door.post, text) for text in (b"1\n", b"unbearable\n", b"2\n")]
        while len(door.intake.commits._waiting) < 3:
            pass
        go.set()
        answers = [each.result() for each in (first, *others)]

    assert [each.status_code for each in answers] == [200, 200, 503, 200]
    assert answers[2].json()["error"] == ("the clicks could not be appended (RuntimeError): the intake's log says why")
    assert caplog.text.count("RuntimeError: a fault of the program") == 1
    assert door.post(b"3\n").json()["end"] == 4
    assert door.status()["error"] is None
    assert door.metrics()["elastic_ctr_intake_refused_requests_total"] == 1


def test_while_the_log_cannot_be_written_clicks_are_refused_and_what_is_there_is_read(door: Desk) -> None:
    door.post(b"a\n")
    door.intake.log._file.db.execute("pragma query_only = 1")

    answer = door.post(b"b\n", Idempotency_Key="k")

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    sentence = "clicks.sqlite cannot be read or written (attempt to write a readonly database): make room where it is"
    assert sentence in answer.json()["error"]
    assert sentence in door.status()["error"]
    assert door.metrics()["elastic_ctr_intake_write_failing"] == 1
    assert text_of(door, 0, 1) == b"a\n"
    assert door.client.get("/readyz").status_code == 200

    door.intake.log._file.db.execute("pragma query_only = 0")
    assert door.post(b"b\n", Idempotency_Key="k").json() == {"partition": door.partition, "first": 1, "end": 2}
    assert door.status()["error"] is None
    assert door.metrics()["elastic_ctr_intake_write_failing"] == 0


def test_a_range_whose_beginning_has_gone_says_with_which_offset_it_begins(tmp_path: Path) -> None:
    now = [0.0]
    with desk(intake_file(tmp_path, retention_hours=1), clock=lambda: now[0]) as door:
        door.post(b"a\nb\n")
        now[0] = 3601.0
        door.post(b"c\n")

        answer = door.client.get("/v1/log/lines", params={"start": 0, "stop": 3})

        assert door.client.get("/v1/log").json() == {"partition": door.partition, "first": 2, "end": 3}
        assert answer.content == b"c\n"
        assert {name: answer.headers[name] for name in ("first-offset", "next-offset", "log-first")} == {
            "first-offset": "2", "next-offset": "3", "log-first": "2"
        }  # fmt: skip


def test_a_clock_that_is_set_empties_no_log(tmp_path: Path) -> None:
    now = [0.0]
    with desk(intake_file(tmp_path, retention_hours=1), clock=lambda: now[0], steady=lambda: 0.0) as door:
        door.post(b"a\nb\n")
        now[0] = 80 * 3600.0
        door.post(b"c\n")

        assert door.client.get("/v1/log").json()["first"] == 0


def test_status_and_metrics_count_what_came(door: Desk) -> None:
    door.post(b"a\nbc\n", Idempotency_Key="k")
    door.post(b"a\nbc\n", Idempotency_Key="k")
    door.post(b"d\n")
    door.post(b"")

    taken = bytes_of_row(5) + bytes_of_row(2)
    assert door.status() == {
        "role": "intake", "partition": door.partition, "first": 0, "end": 3, "neededFrom": 0, "bytes": taken,
        "accepted": {"requests": 2, "records": 3, "bytes": 7},
        "lateClicks": {"joined": 0, "unmatched": 0, "duplicate": 0, "crowdedOut": 0}, "repeated": 1, "refused": 1, "damaged": [],
        "error": None, "topic": None,
    }  # fmt: skip
    found = {name.removeprefix("elastic_ctr_intake_"): value for name, value in door.metrics().items()}
    wanted = {
        "records_total": 3, "bytes_total": 7, "repeated_requests_total": 1, "refused_requests_total": 1,
        "log_first": 0, "log_end": 3, "log_bytes": taken, "commit_seconds_count": 3,
    }  # fmt: skip
    assert {name: found[name] for name in wanted} == wanted


def until(so: Callable[[], bool]) -> None:
    ends = time.monotonic() + 20
    while not so():
        assert time.monotonic() < ends
        time.sleep(0.02)


def test_readers_that_take_no_answers_do_not_have_them_all_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_api, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(intake_api, "ANSWERS_UNDER_WAY", 3)
    with desk(intake_file(tmp_path, max_body_bytes=32 << 20)) as door, ExitStack() as open_ones:
        door.post(b"".join(b"%07d" % number + b"x" * 9992 + b"\n" for number in range(1600)))
        for _ in range(3):
            reader = open_ones.enter_context(socket.create_connection(("127.0.0.1", door.port)))
            reader.sendall(
                f"GET /v1/log/lines?start=0&stop=1600 HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {TOKEN}\r\n\r\n".encode()
            )
        until(lambda: door.intake.answers == 3)
        refused = door.client.get("/v1/log/lines", params={"start": 0, "stop": 1})

        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        until(lambda: door.intake.answers == 0)
        assert door.client.get("/v1/log/lines", params={"start": 0, "stop": 1}).content[:7] == b"0000000"


@pytest.mark.parametrize("path", ["/v1/log", "/v1/log/lines?start=0&stop=1"])
def test_the_log_is_read_with_an_internal_token_alone(door: Desk, path: str) -> None:
    door.post(b"secret\n")

    stranger = httpx.get(f"http://{door.netloc}{path}")

    assert stranger.status_code == 401
    assert "a token of the right 'internal'" in stranger.json()["error"]


def test_requests_without_a_token_take_no_place_of_readers_of_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_api, "ANSWERS_UNDER_WAY", 1)
    with desk(intake_file(tmp_path, max_body_bytes=32 << 20)) as door, ExitStack() as open_ones:
        door.post(b"".join(b"%07d" % number + b"x" * 9992 + b"\n" for number in range(1600)))
        for _ in range(20):
            stranger = open_ones.enter_context(socket.create_connection(("127.0.0.1", door.port)))
            stranger.sendall(b"GET /v1/log/lines?start=0&stop=1600 HTTP/1.1\r\nhost: a\r\n\r\n" * 10)

        assert door.client.get("/v1/log/lines", params={"start": 0, "stop": 1}).status_code == 200


def test_a_request_of_more_lines_than_may_be_joined_at_once_is_refused(tmp_path: Path) -> None:
    data = {
        "format": "jsonl", "label": "click", "shows": "n", "slots": None,
        "stream": {"lateClicks": True, "join": {"key": "id"}},
    }  # fmt: skip
    with desk(intake_file(tmp_path, data, {"user": {"type": "categorical"}})) as door:
        refused = door.post(b"x\n" * (JOINED_LINES + 1))
        taken = door.post(b"x\n" * 10)

    assert (refused.status_code, taken.status_code) == (413, 200)
    assert (
        f"the body has {JOINED_LINES + 1} lines, and {JOINED_LINES} are the most where clicks are joined"
        in refused.text
    )
    assert taken.json()["first"] == 0


def test_ranges_that_are_read_at_once_are_counted_before_they_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake_api, "ANSWERS_UNDER_WAY", 3)
    with desk(intake_file(tmp_path)) as door, ThreadPoolExecutor(8) as callers:
        door.post(b"a\n")
        reading, read = threading.Event(), door.intake.log.read

        def slow(start: int, stop: int, most: int) -> Piece:
            assert reading.wait(30)
            return read(start, stop, most)

        monkeypatch.setattr(door.intake.log, "read", slow)
        asked = [
            callers.submit(
                httpx.get,
                f"http://{door.netloc}/v1/log/lines?start=0&stop=1",
                headers=bearer(tokens(TOKEN)),
                timeout=30,
            )
            for _ in range(8)
        ]
        until(lambda: sum(each.done() for each in asked) == 5)
        reading.set()

        assert sorted(each.result().status_code for each in asked) == [200] * 3 + [503] * 5
        until(lambda: door.intake.answers == 0)


def test_senders_that_go_on_do_not_keep_an_intake_from_ending(tmp_path: Path) -> None:
    log = ClickLog(tmp_path, Retention(1e9, 1 << 40))
    commits = GroupCommit(log, lambda: 0.0, lambda _: None)
    refused: list[LogUnwritable] = []

    async def main() -> None:
        stop = asyncio.Event()

        async def sender() -> None:
            try:
                while True:
                    await commits.append(Clicks(b"a\n", 1))
            except LogUnwritable as failed:
                refused.append(failed)

        senders = [asyncio.create_task(sender()) for _ in range(8)]
        writing = asyncio.create_task(commits.run(stop))
        await asyncio.sleep(0.1)
        stop.set()
        await asyncio.wait_for(writing, 10)
        await asyncio.gather(*senders)

    asyncio.run(main())
    assert ["is being ended" in str(each) for each in refused] == 8 * [True]
    log.close()


def test_a_log_has_one_owner(tmp_path: Path) -> None:
    with subprocess.Popen(*_command(tmp_path, free_port()), stderr=subprocess.PIPE, text=True) as child:
        _until_it_listens(child)
        with pytest.raises(StateInUse, match="two owners would undo each other's work"):
            intake_api.run_intake(intake_file(tmp_path / "log"))
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 0


def test_a_log_of_a_newer_release_ends_the_intake_with_one_sentence_and_2(tmp_path: Path) -> None:
    path = tmp_path / "log" / "clicks.sqlite"
    path.parent.mkdir()
    with closing(sqlite3.connect(path, isolation_level=None)) as newer:
        newer.execute("create table batches (later text)")
        newer.execute("pragma user_version = 2")

    ended = subprocess.run(*_command(tmp_path, free_port()), capture_output=True, text=True, check=False, timeout=60)

    assert ended.returncode == 2
    [sentence] = ended.stderr.splitlines()
    assert (
        f"{path} has schema number 2 and this release knows up to 1, because a newer release has written it: go on with that release, or "
        "put a copy of the file back that this release has written"
    ) in sentence
    with closing(sqlite3.connect(path)) as newer:
        assert [*newer.iterdump()][1:-1] == ["CREATE TABLE batches (later text);"]


def _command(folder: Path, port: int) -> tuple[list[str]]:
    document = intake_file(folder / "log", port=port).model_dump(mode="json", by_alias=True, exclude_none=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(document))
    return ([sys.executable, "-m", "elastic_ctr", "intake", "--config", str(folder / "config.yaml")],)


def _until_it_listens(child: "subprocess.Popen[str]") -> None:
    assert child.stderr is not None
    said = []
    for line in child.stderr:
        said.append(line)
        if "clicks are taken at" in line:
            return
    raise AssertionError("".join(said))


def test_answered_clicks_are_there_after_kill_9_and_a_repeat_of_the_rest_doubles_nothing(tmp_path: Path) -> None:
    port = free_port()
    texts = {str(number): b"%d\n" % number * 3 for number in range(300)}

    client = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)

    def send(key: str) -> tuple[int, int] | None:
        try:
            answer = client.post("/v1/clicks", content=texts[key], headers={"idempotency-key": key})
        except httpx.TransportError:
            return None
        assert answer.status_code == 200, answer.text
        return answer.json()["first"], answer.json()["end"]

    answered: dict[str, tuple[int, int]] = {}
    for lost in (True, True, False):
        with subprocess.Popen(*_command(tmp_path, port), stderr=subprocess.PIPE, text=True) as child:
            _until_it_listens(child)
            with ThreadPoolExecutor(4) as pool:
                # All of them again, those with an answer too.
                sent = {key: pool.submit(send, key) for key in texts}
                if lost:
                    sent["40" if not answered else "200"].result()
                    os.kill(child.pid, signal.SIGKILL)
                for key, each in sent.items():
                    if (found := each.result()) is not None:
                        assert answered.setdefault(key, found) == found
            if not lost:
                log = client.get("/v1/log/lines", params={"start": 0, "stop": 900}).content
                end = client.get("/v1/log").json()["end"]
                client.close()
                child.send_signal(signal.SIGTERM)
                assert child.wait(30) == 0

    assert (len(answered), end) == (300, 900)
    lines = log.splitlines(keepends=True)
    assert {key: b"".join(lines[first:stop]) for key, (first, stop) in answered.items()} == texts
