"""An agent whose pod is told to go: it drains, and waits until others answer what it holds."""

import asyncio
from pathlib import Path

import pytest

from cube.agent.played import MINE, OTHER, Played, pod
from elastic_ctr.cube.agent import agent
from elastic_ctr.cube.release import Holder, Placement


async def test_an_agent_that_ends_drains_while_the_pod_is_asked_and_then_holds_nothing(
    tmp_path: Path, played: Played
) -> None:
    played.say(5)
    played.lookup = 0.0
    async with pod(tmp_path, played, grace_seconds=60.0) as it:
        await it.holds(v5=MINE)
        played.say(5, placement=Placement(shards=2, up=(1,)), holders={5: {OTHER: Holder(partitions=(0, 1, 2, 3))}})
        it.stop.set()
        await it.until(lambda: played.draining and played.reports[-1].draining)
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 10)
        assert played.reports[-1].loaded == {5: MINE}
        assert not it.agent.drained.is_set()

        played.lookup = 10.0
        await it.until(it.agent.drained.is_set)

    assert played.reports[-1].loaded == {}
    assert played.reports[-1].draining


async def test_a_pod_that_nobody_replaces_yet_stays_until_it_is_replaced(tmp_path: Path, played: Played) -> None:
    played.say(5)
    played.lookup = 10.0
    up = Placement(shards=2, up=(1,))
    async with pod(tmp_path, played, grace_seconds=60.0) as it:
        await it.holds(v5=MINE)
        played.say(5, placement=up, holders={5: {OTHER: Holder(partitions=(0, 1))}})
        it.stop.set()
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 20)
        assert not it.agent.drained.is_set()

        played.say(5, placement=up, holders={5: {OTHER: Holder(partitions=(0, 1, 2))}})
        await it.until(it.agent.drained.is_set)


async def test_a_pod_that_nobody_replaces_yet_stays_though_transfer_is_restarted_meanwhile(
    tmp_path: Path, played: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "_TRANSFER_RESTART_SECONDS", 1.0)
    played.say(5)
    played.lookup = 10.0
    up = Placement(shards=2, up=(1,))
    async with pod(tmp_path, played, grace_seconds=60.0) as it:
        await it.holds(v5=MINE)
        played.say(5, placement=up, holders={5: {OTHER: Holder(partitions=(0, 1))}})
        it.stop.set()
        await it.until(lambda: it.agent.document == played.document)
        played.gone = True
        await it.until(lambda: it.agent.release.error is not None)
        await asyncio.sleep(0.3)
        assert not it.agent.drained.is_set()

        # Who never comes back is waited for no longer than a restart takes.
        await it.until(it.agent.drained.is_set)


async def test_a_pod_that_nobody_replaces_yet_stays_though_a_worker_hangs_over_the_order_to_drain(
    tmp_path: Path, played: Played
) -> None:
    played.say(5)
    played.lookup = 10.0
    played.slow = True
    up = Placement(shards=2, up=(1,))
    async with pod(tmp_path, played, grace_seconds=60.0) as it:
        await it.holds(v5=MINE)
        played.say(5, placement=up, holders={5: {OTHER: Holder(partitions=(0, 1))}})
        it.stop.set()
        await it.until(lambda: played.drains)
        heard = len(played.reports)
        await it.until(lambda: len(played.reports) > heard + 10)
        assert played.reports[-1].loaded == {5: MINE}
        assert not it.agent.drained.is_set()

        played.say(5, placement=up, holders={5: {OTHER: Holder(partitions=(0, 1, 2))}})
        await it.until(it.agent.drained.is_set)
        assert not played.draining


async def test_an_order_to_drain_that_is_refused_is_given_again(tmp_path: Path, played: Played) -> None:
    played.say(5)
    played.lookup = 10.0
    played.drain_refused = True
    up = Placement(shards=2, up=(1,))
    async with pod(tmp_path, played, grace_seconds=60.0) as it:
        await it.holds(v5=MINE)
        played.say(5, placement=up, holders={5: {OTHER: Holder(partitions=(0, 1))}})
        it.stop.set()
        await it.until(lambda: played.drains >= 3 and "MemoryError: no room" in played.reports[-1].errors)
        played.drain_refused = False
        await it.until(lambda: played.draining and not played.reports[-1].errors)
        assert not it.agent.drained.is_set()

        played.say(5, placement=up, holders={5: {OTHER: Holder(partitions=(0, 1, 2))}})
        await it.until(it.agent.drained.is_set)


async def test_a_pod_whose_workers_never_take_the_order_to_drain_goes_once_nobody_asks_it_and_others_answer(
    tmp_path: Path, played: Played, caplog: pytest.LogCaptureFixture
) -> None:
    refusal = "MemoryError: no room"
    played.say(5)
    played.lookup = 0.0
    played.drain_refused = True
    async with pod(tmp_path, played, grace_seconds=60.0) as it:
        await it.holds(v5=MINE)
        played.say(5, placement=Placement(shards=2, up=(1,)), holders={5: {OTHER: Holder(partitions=(0, 1, 2, 3))}})
        it.stop.set()
        await it.until(lambda: played.drains >= 10 and refusal in played.reports[-1].errors)
        assert not it.agent.drained.is_set()

        played.lookup = 10.0
        await it.until(it.agent.drained.is_set)

    # However often it refuses, and answers otherwise.
    assert caplog.messages.count(refusal) == 1


async def test_grace_ends_every_drain(tmp_path: Path, played: Played) -> None:
    played.say(5)
    played.lookup = 0.0
    async with pod(tmp_path, played, grace_seconds=0.2) as it:
        await it.holds(v5=MINE)
        it.stop.set()
        await it.until(it.agent.drained.is_set)
