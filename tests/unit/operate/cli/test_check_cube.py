from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from answering import pages, saying
from cube.parts import write_parts
from cube.running import Running
from elastic_ctr.cube.client.blocking import BlockingCubeClient
from elastic_ctr.cube.dictionary.format import Flags, Keys, Values
from elastic_ctr.cube.dictionary.table import VersionTable
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.server.loop import LookupLoop
from elastic_ctr.operate.cli import check
from elastic_ctr.operate.cli.check import CheckFailed, verify_cube

KEYS = np.arange(1, 7, dtype=np.uint64)
Starting = Callable[..., str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Starting]:
    """Starts a cube-server with some partitions; its address."""
    servers: list[Running] = []

    def begin(*only: int, version: int = 3, partitions: int = 4, dim: int = 4, content: int | None = None) -> str:
        folder = tmp_path / str(len(servers))
        paths = write_parts(folder, KEYS, partitions=partitions, version=content or version, only=only, dim=dim)
        servers.append(Running(LookupLoop(counters.private(), 10, 1000)))
        if only:
            servers[-1].hold(VersionTable.open(content or version, dim, partitions, paths))
        return f"127.0.0.1:{servers[-1].port}"

    yield begin
    for server in servers:
        server.stop()


def document(holders: dict[str, list[int]], live: int | None = 3, draining: tuple[str, ...] = ()) -> dict[str, Any]:
    named = {address: {"partitions": parts, "draining": address in draining} for address, parts in holders.items()}
    return {"generation": 1, "revision": 4, "placement": {"shards": 2}, "live": live, "holders": {"3": named}}


def failure(found: Any, path: str = "/release") -> CheckFailed:
    with saying(pages({path: found})) as transfer, pytest.raises(CheckFailed) as failed:
        verify_cube(transfer)
    return failed.value


def test_every_holder_is_asked_for_the_padding_key_and_a_key_of_each_partition(start: Starting) -> None:
    even, odd, copy = start(0, 2), start(1, 3), start(1)
    holders = {even: [0, 2], odd: [1, 3], copy: [1]}

    with saying(pages({"/release": document(holders, draining=(copy,))})) as transfer:
        seen = verify_cube(transfer)

    # 4, 5 and 6 are known, 7 is not; 5 is asked of both holders of its partition.
    assert seen.facts == {
        "transfer": transfer, "version": 3, "partitions": 4, "dim": 4, "keysAsked": 5, "keysFound": 4,
        "holders": [
            {"address": even, "partitions": 2, "draining": False},
            {"address": odd, "partitions": 2, "draining": False},
            {"address": copy, "partitions": 1, "draining": True},
        ],
    }  # fmt: skip
    assert seen.sentence == (
        "version 3 is answered whole: 4 partitions of 4 floats a key by 3 cube-servers; of 5 keys made up, 4 are known"
    )


def test_a_partition_without_a_holder_is_named(start: Starting) -> None:
    failed = failure(document({start(0, 2): [0, 2], start(1): [1]}))

    assert str(failed) == "1 of 4 partitions of version 3 have no holder: 3"
    assert failed.may_pass


def test_a_holder_that_does_not_hold_what_is_said_is_named(start: Starting) -> None:
    address = start(0, 2)

    failed = failure(document({address: [0, 1, 2, 3]}))

    assert f"the holder {address} of version 3: version 3 is not held: {address} answered partition not held" in str(
        failed
    )
    assert failed.may_pass


def test_a_holder_of_another_version_and_one_of_nothing_are_named(start: Starting) -> None:
    other, nothing = start(0, 1, 2, 3, version=2), start()

    assert "answered version not held" in str(failure(document({other: [0, 1, 2, 3]})))
    assert "hold nothing yet" in str(failure(document({nothing: [0, 1, 2, 3]})))


def test_a_holder_that_is_gone_is_named() -> None:
    failed = failure(document({"127.0.0.1:1": [0]}))

    assert "the holder 127.0.0.1:1 of version 3: 127.0.0.1:1 does not answer as a cube-server" in str(failed)
    assert failed.may_pass


def test_copies_that_differ_are_named(start: Starting, monkeypatch: pytest.MonkeyPatch) -> None:
    one, another = start(0, 1, 2, 3), start(0, 1, 2, 3)
    _changed(monkeypatch, another, row=2, value=99)

    failed = failure(document({one: [0, 1, 2, 3], another: [0, 1, 2, 3]}))

    assert str(failed) == f"{one} and {another} answer partition 1 of version 3 differently"
    assert not failed.may_pass


def test_holders_of_another_form_are_named(start: Starting) -> None:
    one, another = start(0, 1, 2, 3), start(0, 1, partitions=2)

    assert f"{one} has 4 partitions of 4 floats, {another} 2 of 4" in str(
        failure(document({one: [0, 1, 2, 3], another: [0, 1]}))
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"row": 0, "value": 1}, "the padding key 0 is not known with zeros"),
        ({"row": 0, "missing": True}, "the padding key 0 is not known with zeros"),
        ({"row": 1, "value": np.nan}, "some values are not finite numbers"),
        ({"row": 1, "missing": True}, "some keys are missing and have values"),
    ],
)
def test_an_answer_that_is_wrong_is_named(
    change: dict[str, Any], reason: str, start: Starting, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = start(0, 1, 2, 3)
    _changed(monkeypatch, address, **change)

    failed = failure(document({address: [0, 1, 2, 3]}))

    assert str(failed) == f"{address} answers version 3 wrong: {reason}"
    assert not failed.may_pass


def _changed(
    monkeypatch: pytest.MonkeyPatch, address: str, *, row: int, value: float | None = None, missing: bool = False
) -> None:
    """A row that a server at an address answers arrives changed."""

    class Changing(BlockingCubeClient):
        def __init__(self, addresses: list[str], *, busy_poll: bool) -> None:
            super().__init__(addresses, busy_poll=busy_poll)
            self.changing = address in addresses

        def lookup(self, version: int, keys: Keys) -> tuple[Values, Flags]:
            values, absent = super().lookup(version, keys)
            if self.changing and value is not None:
                values[row, 1] = value
            absent[row] |= self.changing and missing
            return values, absent

    monkeypatch.setattr(check, "BlockingCubeClient", Changing)


@pytest.mark.parametrize(
    ("found", "reason", "may_pass"),
    [
        (document({}, live=None), "no version is live yet at cube-transfer 127.0.0.1:", False),
        (document({}), "no cube-server holds the live version 3", True),
        ({"role": "master"}, "is not a release document; is cube-transfer there?", False),
        ((503, {"error": "listening for what pods carry"}), "answers 503: listening for what pods carry", False),
    ],
)
def test_a_release_without_a_live_version_is_said(found: Any, reason: str, may_pass: bool) -> None:
    failed = failure(found)

    assert reason in str(failed)
    assert failed.may_pass is may_pass
