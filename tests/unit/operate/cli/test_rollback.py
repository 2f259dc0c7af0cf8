import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from answering import Said, saying
from elastic_ctr.operate.cli.main import build
from operate.cli.fake_kubectl import FakeKubectl

STATE = {"live": 7, "candidate": None, "previous": 8, "promotionPaused": True}


def call(*words: object) -> Result:
    return CliRunner().invoke(build("rollback"), ["rollback", *map(str, words)])


@pytest.fixture
def credentials() -> list[str | None]:
    """What transfer is shown with each order."""
    return []


@pytest.fixture
def orders(kubectl: FakeKubectl, credentials: list[str | None]) -> Iterator[list[Any]]:
    """What transfer, reached through kubectl, is told."""
    told: list[Any] = []

    def transfer(method: str, path: str, body: Any) -> Said:
        told.append((method, path, body))
        return (200, STATE) if body != {"version": 9} else (409, {"error": "version 9 was never live"})

    with saying(transfer, credentials) as address:
        kubectl.say(forward={"ctr-cube-transfer-0:8300": int(address.partition(":")[2])})
        yield told


def test_a_release_is_rolled_back_with_the_token_of_its_secret(
    orders: list[Any], credentials: list[str | None], kubectl: FakeKubectl
) -> None:
    kubectl.say(secrets={"ctr-auth": {"operate": base64.b64encode(b"ann s3cret").decode()}})

    done = call(7, "-n", "ns")
    as_json = call("--resume", "-n", "ns", "--json")

    assert (done.exit_code, as_json.exit_code) == (0, 0)
    assert done.stdout.startswith("version 7 is live; nothing newer goes live until")
    assert json.loads(as_json.stdout) == STATE
    assert orders == [("POST", "/rollback", {"version": 7}), ("POST", "/rollback", {"resume": True})]
    assert credentials == ["Bearer s3cret"] * 2
    assert "s3cret" not in done.output


def test_the_end_of_a_publishing_hold_is_printed_with_the_new_measure() -> None:
    with saying(lambda *_: (200, {**STATE, "promotionPaused": False, "endedHold": "the AUC fell to 0.51"})) as address:
        done = call("--resume", "--transfer", address)

    assert done.exit_code == 0
    assert (
        "It was held because the AUC fell to 0.51. Windows that are trained from now on are the new measure"
        in done.stdout
    )


def test_an_order_that_another_program_answers_is_exit_code_2_with_a_reason(tmp_path: Path) -> None:
    with saying(lambda *_: (200, {})) as address:
        done = call(7, "--transfer", address)

    assert done.exit_code == 2
    assert f"{address} does not answer as cube-transfer does" in done.stderr


def test_a_token_file_serves_where_the_secret_may_not_be_read(
    orders: list[Any], kubectl: FakeKubectl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("ann s3cret")

    forbidden = call(7, "-n", "ns")
    with_file = call(7, "-n", "ns", "--token-file", tmp_path / "token")
    monkeypatch.setenv("ELASTIC_CTR_TOKEN_FILE", str(tmp_path / "token"))
    by_environment = call(7, "-n", "ns")

    assert [each.exit_code for each in (forbidden, with_file, by_environment)] == [2, 0, 0]
    assert 'the token is in Secret ctr-auth (kubectl get secret: Error from server (Forbidden): secrets "ctr-auth"' in (
        forbidden.stderr
    )
    assert len(orders) == 2


def test_a_refusal_of_transfer_is_printed_in_its_words(orders: list[Any], kubectl: FakeKubectl, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("ann s3cret")

    refused = call(9, "-n", "ns", "--token-file", tmp_path / "token")
    both = call(9, "-n", "ns", "--transfer", "x:1")

    assert (refused.exit_code, both.exit_code) == (2, 2)
    assert "answers 409: version 9 was never live" in refused.stderr
    assert "say either --namespace, or --transfer: not both" in both.stderr
