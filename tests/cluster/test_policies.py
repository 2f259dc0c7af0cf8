"""Every edge of the architecture's picture is open, and what is not drawn there is shut."""

import json
import time
from collections.abc import Callable, Iterator

import pytest

from cluster.conftest import CUBE_IMAGE
from cluster.hadoop import NAMESPACE as HDFS
from cluster.kube import Kube, eventually, is_ready, name_of
from cluster.release import Release
from socket_table import listening_sockets

pytestmark = pytest.mark.functional

PYTHON = "/opt/elastic-ctr/bin/python"
PORTS = {
    "serving": 8400, "transfer": 8300, "cube": 8600, "status": 8701, "control": 8700, "pserver": 8790, "store": 8080,
    "hdfs": 9870,
}  # fmt: skip
OPEN = {
    "master": ("store", "hdfs", "pserver"),
    "trainer": ("control", "push", "store", "hdfs"),
    "pserver": ("control", "store"),
    "cube-transfer": ("store",),
    "cube": ("transfer", "store"),
    "serving": ("transfer", "store", "cube"),
    "client": ("serving", "transfer", "cube", "status"),
}
SHUT = {
    "master": ("cube", "transfer"),
    "trainer": ("cube", "transfer", "serving", "pserver"),
    "pserver": ("transfer", "cube", "hdfs"),
    "cube-transfer": ("control", "cube", "hdfs"),
    "cube": ("control", "serving", "pserver"),
    "serving": ("control", "pserver", "hdfs"),
    "client": ("store", "pserver", "push", "control"),
    "stranger": ("transfer", "cube", "control", "pserver", "push", "store"),
}
SHUT_IN = "shut-in"
CONNECT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor

def is_open(address):
    try:
        socket.create_connection(address, 2).close()
    except OSError:
        return False
    return True

doors = json.loads(sys.argv[1])
with ThreadPoolExecutor() as threads:
    print(json.dumps(dict(zip(doors, threads.map(is_open, map(tuple, doors.values()))))))
"""


def asker(release: Release, name: str, labels: dict[str, str]) -> dict[str, object]:
    """A pod that waits to be used."""
    security = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": release.namespace, "labels": labels},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {"name": "asker", "image": CUBE_IMAGE, "command": ["sleep", "3600"], "securityContext": security}
            ],
        },
    }


@pytest.fixture
def askers(settled: Release, kube: Kube) -> Iterator[None]:
    """Pods that are nobody's: one is labelled as a client of the release, one is not, and one has a policy that lets nothing out."""
    client = {"app.kubernetes.io/name": "elastic-ctr", "app.kubernetes.io/instance": settled.name}
    labels = {
        "client": {**client, "app.kubernetes.io/component": "client"},
        "stranger": {"app": "stranger"},
        SHUT_IN: {"app": SHUT_IN},
    }
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": SHUT_IN, "namespace": settled.namespace},
        "spec": {"podSelector": {"matchLabels": {"app": SHUT_IN}}, "policyTypes": ["Egress"]},
    }
    kube.apply(policy, *(asker(settled, name, each) for name, each in labels.items()))
    for name in labels:
        eventually(f"{name} runs", lambda name=name: is_ready(kube.get("pod", name, settled.namespace) or {}), 60)  # type: ignore[misc]
    yield
    for name in labels:
        kube.delete("pod", name, settled.namespace)
    kube.delete("networkpolicy", SHUT_IN, settled.namespace)


def targets(release: Release) -> dict[str, tuple[str, int]]:
    """Where each door is; what has no Service is found by its pod's address."""
    services = {
        "serving": "serving",
        "transfer": "cube-transfer",
        "status": "master",
        "control": "master",
        "store": "file-server",
    }
    found = {door: (f"{release.name}-{service}", PORTS[door]) for door, service in services.items()}
    for door in ("cube", "pserver"):
        found[door] = (release.pod(door)["status"]["podIP"], PORTS[door])
    found["push"] = (found["pserver"][0], 8800)
    found["hdfs"] = (f"hdfs-0.hdfs.{HDFS}.svc.cluster.local", PORTS["hdfs"])
    return found


def reached(
    release: Release, there: dict[str, tuple[str, int]], source: str, doors: tuple[str, ...]
) -> dict[str, bool]:
    """Which doors a pod of the source can open."""
    asks = source in {"client", "stranger", SHUT_IN}
    pod = source if asks else name_of(release.pod(source))
    container = "asker" if asks else {"cube": "cube-server"}.get(source, source)
    wanted = json.dumps({door: there[door] for door in doors})
    answer: dict[str, bool] = json.loads(
        release.kube.exec(release.namespace, pod, container, PYTHON, "-c", CONNECT, wanted)
    )
    return answer


def enforces_policies(release: Release, there: dict[str, tuple[str, int]]) -> bool:
    """Whether the network shuts in the pod of the policy of this test's own, which it may do some seconds late."""
    for _ in range(10):
        if not reached(release, there, SHUT_IN, ("serving",))["serving"]:
            return True
        time.sleep(1)
    return False


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("askers")
def test_every_edge_of_the_picture_is_open(settled: Release) -> None:
    there = targets(settled)
    found = {source: reached(settled, there, source, doors) for source, doors in OPEN.items()}

    assert {
        f"{source} to {door}" for source, doors in found.items() for door, is_open in doors.items() if not is_open
    } == set()


@pytest.mark.timeout(240)
@pytest.mark.usefixtures("askers")
def test_a_port_that_no_policy_opens_cannot_be_reached(settled: Release, tell: Callable[..., None]) -> None:
    there = targets(settled)
    found = {source: reached(settled, there, source, doors) for source, doors in SHUT.items()}
    wrong = {f"{source} to {door}" for source, doors in found.items() for door, is_open in doors.items() if is_open}
    tried = sum(map(len, SHUT.values()))
    tell(tried=tried, open=sorted(wrong))

    # Not by what is open above: a chart without policies would look the same as a network that enforces none.
    if wrong and not enforces_policies(settled, there):
        pytest.skip("this cluster's network does not enforce NetworkPolicies")
    assert wrong == set()


@pytest.mark.timeout(240)
def test_the_sockets_that_listen_in_each_pod_are_those_of_the_manual(settled: Release) -> None:
    documented = listening_sockets()

    for component in sorted({each.component for each in documented} - {"intake", "tracking"}):
        for pod in settled.pods(component):
            container = pod["spec"]["containers"][0]["name"]
            # The containers of a pod share its network.
            tables = settled.kube.exec(
                settled.namespace, name_of(pod), container, "cat", "/proc/net/tcp", "/proc/net/tcp6"
            )
            rows = [line.split() for line in tables.splitlines()]
            found = {int(row[1].rpartition(":")[2], 16) for row in rows if row[3:4] == ["0A"]}

            assert found == {each.port for each in documented if each.component == component}, (component, name_of(pod))
