"""The values file for a single node, in a cluster of one node with two cores and 4 GiB, and the memory that its roles take."""

import subprocess
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import yaml

from cluster.clicks_volume import write_clicks
from cluster.conftest import BUILD, FILE_SERVER_IMAGE, IMAGE_TAG, image_of
from cluster.kube import Kube, eventually, restarts
from cluster.release import CHART, RESTRICTED, Release, Values, ledger_adds_up, merged, released
from elastic_ctr.operate.local.endpoints import predict
from needs import program

# tests/chart/test_sizes.py has the sum of the requests, and those of the page, in `make test`.
pytestmark = [pytest.mark.functional, pytest.mark.nightly]
CLUSTER, NAMESPACE = "ctr-single", "elastic-ctr-single"
CORES, GIB = 2, 4
EXAMPLE = CHART / "examples" / "single-node.yaml"
HOURS = [f"20200401/{hour:02d}" for hour in range(4)]
# In the example's four slots they have about 100,000 keys, the most that the example is for.
ROWS = 140_000
SECONDS_OF_LOAD = 20
# Bytes of each container that the kernel cannot take back, twice a second: of cgroups v2, and of v1, which has them twice.
LOOK = """
while :; do
  awk '$1 == "anon" || $1 == "shmem" {two[FILENAME] += $2} $1 == "total_rss" || $1 == "total_shmem" {one[FILENAME] += $2}
       END {for (file in two) print file, file in one ? one[file] : two[file]}' \
    $(find /sys/fs/cgroup -path '*/cri-containerd-*.scope/memory.stat') 2>/dev/null
  sleep 0.5
done
"""


def bash(*command: str, stdin: str | None = None) -> str:
    return subprocess.run(command, input=stdin, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def node(workers: list[str]) -> Iterator[tuple[str, Kube]]:
    """The one node, and its cluster. The scheduler sees 4 GiB, as it would there, and the kernel has no more for all of it."""
    for name in ("kind", "docker"):
        program(name)
    image = bash("docker", "inspect", "--format", "{{.Config.Image}}", workers[0]).strip()
    whole = int(bash("docker", "exec", workers[0], "awk", "/^MemTotal/ {print $2}", "/proc/meminfo"))
    reserved: Values = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "systemReserved": {"memory": f"{whole - GIB * 2**20}Ki"},
    }
    cluster = {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "nodes": [{"role": "control-plane"}],
        "kubeadmConfigPatches": [yaml.safe_dump(reserved)],
    }
    folder = BUILD / "single"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kind.yaml").write_text(yaml.safe_dump(cluster))
    to = ("--name", CLUSTER, "--kubeconfig", str(folder / "kubeconfig"))
    name = f"{CLUSTER}-control-plane"
    try:
        bash(
            "kind", "create", "cluster", *to, "--image", image, "--config", str(folder / "kind.yaml"), "--wait", "180s"
        )
        limits = ("--cpus", str(CORES), "--memory", f"{GIB}g", "--memory-swap", f"{GIB}g")
        bash("docker", "update", *limits, name)
        images = (*(f"elastic-ctr/{each}:{IMAGE_TAG}" for each in ("cube", "trainer", "serving")), FILE_SERVER_IMAGE)
        bash("kind", "load", "docker-image", "--name", CLUSTER, *images)
        yield name, Kube(str(folder / "kubeconfig"))
    finally:
        subprocess.run(["kind", "delete", "cluster", *to], check=False, capture_output=True)


@contextmanager
def peaks(node: str) -> Iterator[dict[str, int]]:
    """The most bytes of anonymous and shared memory of each container of a node, by its id, while the context lasts."""
    found: dict[str, int] = defaultdict(int)
    looking = subprocess.Popen(["docker", "exec", node, "sh", "-c", LOOK], stdout=subprocess.PIPE, text=True)

    def read() -> None:
        assert looking.stdout is not None
        for line in looking.stdout:
            place, size = line.split()
            key = place.rpartition("/cri-containerd-")[2].partition(".scope")[0]
            found[key] = max(found[key], int(size))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        yield found
    finally:
        # The loop in the node ends with the first line that nobody reads.
        looking.terminate()
        reader.join()
        looking.communicate()


def by_container(release: Release, found: dict[str, int]) -> dict[str, dict[str, int]]:
    """MiB that each container requests, and took at most."""
    table = {}
    for pod in release.pods():
        component = pod["metadata"]["labels"]["app.kubernetes.io/component"]
        requests = {each["name"]: each["resources"]["requests"]["memory"] for each in pod["spec"]["containers"]}
        for status in pod["status"]["containerStatuses"]:
            peak = found[status["containerID"].rpartition("/")[2]]
            requested = requests[status["name"]]
            assert requested.endswith("Mi")
            table[f"{component}/{status['name']}"] = {
                "requested": int(requested[:-2]),
                "peak": round(peak / 2**20),
            }
    return table


@pytest.mark.timeout(1800)
def test_the_example_for_a_single_node_trains_and_answers_on_two_cores_and_four_gibibytes(
    node: tuple[str, Kube], tell: Callable[..., None]
) -> None:
    name, kube = node
    here: Values = {"image": {"tag": IMAGE_TAG}, "fileServer": {"image": image_of(FILE_SERVER_IMAGE)}}
    values = merged(yaml.safe_load(EXAMPLE.read_text()), here)
    kube.namespace(NAMESPACE, RESTRICTED)
    write_clicks(kube, NAMESPACE, len(HOURS), ROWS, "sparse")
    seconds: dict[str, float] = {}
    start = time.monotonic()

    with peaks(name) as found, released(Release(kube, "ctr", NAMESPACE, BUILD / "values"), values) as release:
        release.wait_live(seconds=600)
        release.wait_rolled_out()
        ask_for(release, 0)
        seconds["from install to a prediction"] = round(time.monotonic() - start, 1)
        status, last = release.wait_trained(HOURS[-1], 600)
        newest = int(last["version"])
        eventually("the last hour is live", lambda: release.document().live == newest, 300)
        seconds["from install to the last hour live"] = round(time.monotonic() - start, 1)
        asked = ask_for(release, SECONDS_OF_LOAD)
        release.helm("test", release.name, "--timeout", "5m")
        table = by_container(release, found)
        counted = {each["metadata"]["name"]: restarts(each) for each in release.pods()}

    tell(**seconds, predictions=asked, passes=[each["records"] for each in status["passes"]], memory=table)
    print(*(f"| {key} | {each['requested']} MiB | {each['peak']} MiB |" for key, each in table.items()), sep="\n")
    ledger_adds_up(status)
    assert not any(counted.values()), counted
    assert {key.partition("/")[0] for key in table} >= {"cube", "cube-transfer", "file-server", "master", "pserver", "serving", "trainer"}  # fmt: skip
    assert all(0 < each["peak"] <= each["requested"] for each in table.values()), table


def ask_for(release: Release, seconds: float) -> int:
    """Predictions that were answered, in requests of 100, one after the other, and one at least."""
    lines = [f"{number}:0 {number}:1 {number}:2 {number}:3" for number in range(100)]
    count = 0
    with release.kube.forwarded(release.namespace, f"svc/{release.name}-serving", 8400) as address:
        end = time.monotonic() + seconds
        while not count or time.monotonic() < end:
            probabilities, _ = predict(address, "ctr", lines)
            count += len(probabilities)
    return count
