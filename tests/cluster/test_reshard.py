"""Shards and replicas come and go while predictions and raw lookups are asked without pause."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from cluster.conftest import CUBE_IMAGE
from cluster.kube import Kube, eventually, is_going
from cluster.load import Load, Span, all_right, asked
from cluster.release import Release, Values, merged

pytestmark = pytest.mark.functional
WAITS = "serving waits for a core, ms a second"


def cube(shards: int, replicas: int) -> Values:
    return {"cube": {"replicasPerShard": replicas, "config": {"shards": shards}}}


def fetched_bytes(release: Release) -> dict[str, float]:
    """By pod: what it has fetched from the store since it started."""
    counted: dict[str, float] = {}
    for pod in release.pods("cube"):
        name = pod["metadata"]["name"]
        if is_going(pod):
            continue
        with release.kube.forwarded(release.namespace, f"pod/{name}", 8601) as address:
            counted[name] = metric(address, "fetched_bytes")
    return counted


def metric(address: str, name: str) -> float:
    """The sum of the samples whose name ends so."""
    text = httpx.get(f"http://{address}/metrics", timeout=10, trust_env=False).text
    found = [
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if not line.startswith("#") and line.split("{")[0].split(" ")[0].removesuffix("_total").endswith(name)
    ]
    assert found, f"no metric {name} in {text[:400]}"
    return sum(found)


def restarted_or_gone(before: dict[str, str], release: Release) -> list[str]:
    now = {each["metadata"]["name"]: each["metadata"]["uid"] for each in release.pods("cube")}
    return [name for name, uid in before.items() if now.get(name) != uid]


def uids(release: Release) -> dict[str, str]:
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in release.pods("cube") if not is_going(each)}


def core_wait(release: Release) -> float:
    """Seconds that the threads of the first serving pod have been ready to run and had no core, since they started.

    Second field of /proc/PID/task/TID/schedstat, in nanoseconds. Threads that ended are not in it.
    """
    pod = release.pod("serving")["metadata"]["name"]
    lines = release.kube.exec(release.namespace, pod, "serving", "sh", "-c", "cat /proc/[0-9]*/task/*/schedstat")
    return sum(int(line.split()[1]) for line in lines.splitlines()) / 1e9


def shown(span: Span, steady: Span) -> dict[str, Any]:
    ratio = span.percentile(0.99) / steady.percentile(0.99)
    return {**span.as_dict(), "p99 over steady": round(ratio, 2)}


@pytest.mark.timeout(900)
def test_shards_and_replicas_change_under_load_and_every_answer_is_right(
    settled: Release, load: Load, tell: Callable[..., None]
) -> None:
    waited, start = core_wait(settled), time.time()
    steady = load.steady()
    figures: dict[str, Any] = {what: span.as_dict() for what, span in steady.items()}
    tell(steady={**figures, WAITS: round(1000 * (core_wait(settled) - waited) / (time.time() - start))})

    # The tests below go from two shards to four and back.
    for shards, replicas in ((3, 1), (1, 1), (2, 2), (2, 1)):
        before, waited, start = uids(settled), core_wait(settled), time.time()
        settled.change(cube(shards, replicas))
        settled.wait_settled()
        took = time.time() - start
        # Those that go answer until nobody asks them any more.
        eventually("what is too many has gone", lambda: not any(map(is_going, settled.pods("cube"))), 120)
        spans = load.spans(start, time.time())
        # Where nodes share cores with what starts on them, this is most of what makes answers late.
        waited = (core_wait(settled) - waited) / (time.time() - start)
        step = f"{shards} shards x {replicas}"
        figures = {what: shown(span, steady[what]) for what, span in spans.items()}
        figures |= {"seconds": round(took, 1), "bytes fetched": fetched_bytes(settled)}
        tell(**{step: {**figures, WAITS: round(1000 * waited)}})
        kept = {name: uid for name, uid in before.items() if name in uids(settled)}
        assert restarted_or_gone(kept, settled) == []

    totals = load.stop()
    tell(totals=totals)
    all_right(totals)


@pytest.mark.timeout(400)
def test_growing_fetches_only_what_the_new_pods_own(settled: Release, tell: Callable[..., None]) -> None:
    before = fetched_bytes(settled)

    settled.change(cube(4, 1))
    document = settled.wait_settled()

    after = fetched_bytes(settled)
    old = {name: after[name] - count for name, count in before.items()}
    new = {name: count for name, count in after.items() if name not in before}
    tell(old=old, new=new)
    assert set(old.values()) == {0.0}
    assert len(new) == 2
    assert all(new.values())
    assert document.live is not None


@pytest.fixture
def load_of_four(of_four_shards: Release, workers: list[str]) -> Iterator[Load]:
    with asked(of_four_shards, CUBE_IMAGE, workers[-1]) as asking:
        yield asking


@pytest.mark.timeout(400)
def test_a_change_that_is_taken_back_within_seconds_costs_no_answer(
    of_four_shards: Release, load_of_four: Load, tell: Callable[..., None]
) -> None:
    start = time.time()

    of_four_shards.change(cube(2, 1))
    time.sleep(3)
    of_four_shards.change(cube(4, 1))
    seconds = time.time() - start
    of_four_shards.wait_settled()
    of_four_shards.wait_rolled_out()

    totals = load_of_four.stop()
    tell(seconds=round(seconds, 1), totals=totals)
    all_right(totals)


@pytest.mark.timeout(400)
def test_a_shrink_while_transfer_is_down_costs_no_answer(
    of_four_shards: Release, load_of_four: Load, kube: Kube, base_values: Values, tell: Callable[..., None]
) -> None:
    transfer = f"statefulset/{of_four_shards.name}-cube-transfer"
    kube.run("scale", "-n", of_four_shards.namespace, transfer, "--replicas=0")
    eventually("transfer is down", lambda: not of_four_shards.pods("cube-transfer"), 90)
    of_four_shards.upgrade(merged(base_values, cube(2, 1)), "--force-conflicts")
    document = of_four_shards.wait_settled()
    of_four_shards.wait_rolled_out()

    totals = load_of_four.stop()
    tell(totals=totals)
    assert document.placement.shards == 2
    all_right(totals)
