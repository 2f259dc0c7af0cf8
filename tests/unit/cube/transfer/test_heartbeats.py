from typing import Any

import pytest

from elastic_ctr.cube.release import AgentReport
from elastic_ctr.cube.transfer.heartbeats import Pods, complaint_about, may_be_cube_pod


def report(pod: str = "c-s1-0", **more: Any) -> AgentReport:
    fields = {"pod": pod, "address": "127.0.0.1:1", "shard": 1, **more}
    return AgentReport.model_validate(fields)


def test_a_report_is_news_when_it_differs_from_the_one_before() -> None:
    pods: Pods[AgentReport] = Pods(10)

    assert pods.record(report(), 0)
    assert not pods.record(report(), 1)
    assert pods.record(report(draining=True), 2)
    assert [at for _, at in pods.heard()] == [2]


def test_a_report_that_is_the_same_only_renews_the_one_before() -> None:
    pods: Pods[AgentReport] = Pods(10)
    first = report(loaded={7: (0, 1)})
    pods.record(first, 0)

    pods.record(report(loaded={7: (0, 1)}), 8)
    [(kept, at)] = pods.heard()

    assert kept is first
    assert at == 8
    assert pods.expire(15) == []
    assert pods.record(report(loaded={7: (0,)}), 16)
    assert pods.reports == [report(loaded={7: (0,)})]


def test_a_silent_pod_expires_once() -> None:
    pods: Pods[AgentReport] = Pods(10)
    pods.record(report("a-s1-0"), 0)
    pods.record(report("b-s1-0"), 5)

    assert pods.expire(10) == []
    assert pods.expire(11) == ["a-s1-0"]
    assert pods.expire(12) == []
    assert [each.pod for each in pods.reports] == ["b-s1-0"]


def test_pods_do_not_expire_because_transfer_stood_still() -> None:
    pods: Pods[AgentReport] = Pods(10)
    pods.record(report("a-s1-0"), 0)

    pods.extend_deadlines(60)

    assert pods.expire(65) == []
    assert pods.expire(71) == ["a-s1-0"]


def test_a_pod_that_reported_before_a_restart_expires_unless_it_reports_again() -> None:
    pods: Pods[AgentReport] = Pods(10)
    pods.record(report("a-s1-0"), -9)
    pods.record(report("b-s1-0"), -9)
    pods.record(report("b-s1-0"), 0)

    assert pods.expire(2) == ["a-s1-0"]


@pytest.mark.parametrize("address", ["127.0.0.1:80", "127.9.0.1:1", "localhost:8600", "[::1]:65535"])
def test_locally_only_this_machine_is_an_address(address: str) -> None:
    assert may_be_cube_pod(address, None)


@pytest.mark.parametrize(
    "address",
    ["", "127.0.0.1", "127.0.0.1:", "127.0.0.1:0", "127.0.0.1:65536", "127.0.0.1:x", "10.0.0.1:80", "example.org:80",
     "127.0.0.1.example.org:80", "0.0.0.0:80", "localhost.example.org:1"],
)  # fmt: skip
def test_anything_else_is_not(address: str) -> None:
    assert not may_be_cube_pod(address, None)


def test_in_the_cluster_addresses_end_in_the_headless_services_domain() -> None:
    def inside(address: str) -> bool:
        return may_be_cube_pod(address, "ctr-cube.default.svc.cluster.local")

    assert inside("ctr-cube-s0-0.ctr-cube.default.svc.cluster.local:8600")
    assert inside("CTR-cube-s0-0.ctr-cube.default.svc.CLUSTER.local:8600")
    assert not inside("evilctr-cube.default.svc.cluster.local:8600")
    assert not inside("ctr-cube.default.svc.cluster.local:8600")
    assert not inside("127.0.0.1:8600")


@pytest.mark.parametrize(
    ("more", "says"),
    [({"address": "10.0.0.1:1"}, "address"), ({"pod": "c-0"}, "pod"), ({"shard": 2}, "of shard 1, not 2")],
)
def test_a_report_that_contradicts_itself_is_not_believed(more: dict[str, Any], says: str) -> None:
    complaint = complaint_about(report(**more), None)

    assert complaint is not None
    assert says in complaint


def test_a_right_report_is_believed() -> None:
    assert complaint_about(report(), None) is None
