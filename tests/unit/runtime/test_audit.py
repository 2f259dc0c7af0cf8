import json
from pathlib import Path

import pytest
from starlette.requests import Request

from credentials import access, tokens
from elastic_ctr.runtime import audit as module
from elastic_ctr.runtime.access import Access
from elastic_ctr.runtime.audit import AuditLine, AuditLog, lines_below
from elastic_ctr.runtime.auth import Right, Token, TokenFile, Tokens, bearer
from elastic_ctr.runtime.http import RequestRefused
from waiting import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(1000.0)


@pytest.fixture
def log(tmp_path: Path, clock: Clock) -> AuditLog:
    return AuditLog("master", tmp_path / "state" / "master", clock)


def written(folder: Path) -> list[tuple[str, str, str, str]]:
    found = sorted(lines_below(folder / "state"), key=lambda each: each.at)
    return [(each.token, each.call, each.on, each.result) for each in found]


def request(secret: str | None, caller: str = "10.0.0.7") -> Request:
    headers = bearer(None if secret is None else tokens(secret))
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "method": "POST", "path": "/retry", "headers": raw, "client": (caller, 5)})


def test_a_change_is_audited_with_its_caller_action_object_and_result(log: AuditLog, tmp_path: Path) -> None:
    role = access("s3cret", log)

    with role.audited(request("s3cret"), Right.OPERATE, "pass retry") as call:
        call.on = "pass 20200401/00"
    with (
        pytest.raises(RequestRefused),
        role.audited(request("s3cret"), Right.OPERATE, "pass retry", "pass 20200401/01"),
    ):
        raise RequestRefused(409, "it is not stopped")
    with pytest.raises(ZeroDivisionError), role.audited(request("s3cret"), Right.OPERATE, "pass retry"):
        raise ZeroDivisionError

    assert written(tmp_path) == [
        ("test", "pass retry", "pass 20200401/00", "done"),
        ("test", "pass retry", "pass 20200401/01", "refused: it is not stopped"),
        ("test", "pass retry", "-", "failed: ZeroDivisionError"),
    ]
    assert "s3cret" not in (tmp_path / "state/master/master.audit.jsonl").read_text()


def test_a_refused_call_is_named_with_the_token_that_it_had_and_its_address(log: AuditLog, tmp_path: Path) -> None:
    rights = {Right.OPERATE: Tokens([Token("ann", "one")]), Right.CLICKS: Tokens([Token("web", "two")])}
    role = Access(rights, log)

    for right, secret in ((Right.OPERATE, None), (Right.OPERATE, "two"), (Right.INTERNAL, "one")):
        with pytest.raises(RequestRefused, match=f"a token of the right '{right.value}'"):
            role.require(request(secret), right)

    assert written(tmp_path) == [
        ("-", "POST /retry", "from 10.0.0.7", "refused: no token of the right 'operate'"),
        ("web", "POST /retry", "from 10.0.0.7", "refused: no token of the right 'operate'"),
        ("ann", "POST /retry", "from 10.0.0.7", "refused: no token of the right 'internal'"),
    ]


def test_a_caller_of_ipv4_is_named_by_its_address_on_a_socket_of_ipv6(log: AuditLog, tmp_path: Path) -> None:
    role = Access({Right.OPERATE: Tokens([Token("ann", "one")])}, log)

    with pytest.raises(RequestRefused):
        role.require(request(None, caller="::ffff:10.0.0.7"), Right.OPERATE)

    assert [each[2] for each in written(tmp_path)] == ["from 10.0.0.7"]


def test_strangers_neither_fill_the_disk_nor_push_out_the_changes(
    log: AuditLog, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FILE_BYTES", 10_000)
    log.change("ann", "rollback", "version 7", "done")
    for _ in range(100):
        clock.now += 60
        for _ in range(1000):
            log.refused("-", "POST /" + "x" * 5000, "from 10.0.0.7", "refused")

    taken = sum(each.stat().st_size for each in (tmp_path / "state").rglob("*") if each.is_file())
    found = written(tmp_path)
    assert taken < 30_000
    assert ("ann", "rollback", "version 7", "done") in found
    assert ("-", "calls", "-", "970 more calls were refused in the minute before") in found


def test_posts_of_clicks_are_counted_and_what_is_left_is_written_at_the_end(
    log: AuditLog, tmp_path: Path, clock: Clock
) -> None:
    for _ in range(3):
        log.posted("web", 100)
        clock.now += 300
    log.posted("app", 1)
    log.close()

    assert written(tmp_path) == [
        ("web", "POST /v1/clicks", "3 requests, 300 lines in 600 s", "done"),
        ("app", "POST /v1/clicks", "1 requests, 1 lines in 0 s", "done"),
    ]


def test_a_replaced_token_is_seen_once(log: AuditLog, tmp_path: Path) -> None:
    file = tmp_path / "operate"
    file.write_text("ann one\n")
    role = Access({Right.OPERATE: TokenFile(file)}, log)
    role.require(request("one"), Right.OPERATE)
    file.write_text("ann one\nbob two\n")

    for _ in range(2):
        role.require(request("two"), Right.OPERATE)

    assert written(tmp_path) == [("-", "tokens", "right 'operate'", "valid now: ann, bob")]


def test_a_disk_that_is_full_costs_the_line_and_not_the_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    AuditLog("master", tmp_path / "file" / "state").change("ann", "rollback", "version 7", "done")

    assert "rollback" in caplog.text
    assert "cannot be written" in caplog.text


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"at": "x"}', '{"at": 1, "role": "master"}'])
def test_a_line_that_is_none_is_passed_over(text: str) -> None:
    assert AuditLine.parse(text) is None


def test_the_text_of_a_caller_is_one_short_line_of_the_audit(log: AuditLog, tmp_path: Path) -> None:
    log.refused("-", "POST /a\nb\x1b[31m" + "x" * 1000, "from ::1", "refused")

    [line] = (tmp_path / "state/master/master.refused.jsonl").read_text().splitlines()
    found = json.loads(line)["call"]
    assert found.startswith("POST /a?b?[31m")
    assert len(found) == 300
