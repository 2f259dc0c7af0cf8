"""What tests of a cluster share: the cluster, a real HDFS, one release that most of them use, and what they leave behind."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.hadoop import ClickLogs, Hadoop
from cluster.kube import Kube, name_of
from cluster.laptop import Laptop, run_on_laptop
from cluster.load import Load, asked
from cluster.release import RESTRICTED, Release, Values, merged

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "cluster"
NAMESPACE = "elastic-ctr-test"
# The order in which files tell most soonest; what takes nodes away comes last: it moves what others measure by.
# Those of the release with two of everything follow each other.
ORDER = (
    "smoke", "reshard", "gang", "hdfs", "rows", "streams", "scoring", "autoscaling", "policies", "refusals", "laptop", "releases", "backup", "signed_release",
    "single_node", "upgrade", "chaos"
)  # fmt: skip

IMAGE_TAG = os.environ.get("ELASTIC_CTR_TAG", "dev")
CUBE_IMAGE = f"elastic-ctr/cube:{IMAGE_TAG}"
HDFS_IMAGE = os.environ.get("ELASTIC_CTR_HDFS_IMAGE", "elastic-ctr-test/hdfs:dev")
FILE_SERVER_IMAGE = os.environ.get("ELASTIC_CTR_FILE_SERVER_IMAGE", "elastic-ctr-test/file-server:dev")
SEED = int(os.environ.get("ELASTIC_CTR_SEED", "1"))
# Where kind.yaml publishes it.
NODE_PORT = int(os.environ.get("ELASTIC_CTR_NODE_PORT", "30400"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In order of value; without a cluster all are skipped, and say why."""
    here = [item for item in items if Path(__file__).parent in item.path.parents]
    known = config.getoption("kubeconfig", None) or os.environ.get("KUBECONFIG")
    reason = "needs a cluster: set KUBECONFIG or --kubeconfig (make kind-up brings one up)"
    if not config.pluginmanager.hasplugin("helm-charts"):
        known, reason = None, "needs the plugin helm-charts: run make cluster-test"
    for item in here:
        if not known:
            item.add_marker(pytest.mark.skip(reason=reason))

    def place(item: pytest.Item) -> int:
        name = item.path.stem.removeprefix("test_")
        return ORDER.index(name) if name in ORDER else len(ORDER)

    places = [number for number, item in enumerate(items) if item in here]
    for number, item in zip(places, sorted(here, key=place), strict=True):
        items[number] = item


# -- the cluster ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session", autouse=True)
def _gives_way() -> None:
    """Where the nodes are containers of this machine, helm and kubectl must not take the cores that answers come from."""
    os.nice(19)


@pytest.fixture(scope="session")
def kube_config(pytestconfig: pytest.Config) -> str:
    """The plugin's fixture lives as long as a module; one release serves all of ours."""
    given = pytestconfig.getoption("kubeconfig") or os.environ["KUBECONFIG"]
    return str(given)


@pytest.fixture(scope="session")
def kube_cluster(kube_config: str) -> Iterator[Any]:
    """The plugin's cluster, for as long as the session."""
    from pytest_helm_charts.clusters import ExistingCluster

    cluster = ExistingCluster(kube_config)
    cluster.create()
    yield cluster
    cluster.destroy()


@pytest.fixture(scope="session")
def kube(kube_cluster: Any, kube_config: str) -> Kube:
    """The plugin has connected to it; what it cannot do is ours."""
    return Kube(kube_config)


@pytest.fixture(scope="session")
def workers(kube: Kube) -> list[str]:
    """Names of the nodes that take pods. The load and HDFS are on the last, so faults of nodes hit the first."""
    nodes = [each for each in kube.all("nodes") if not each["spec"].get("taints")]
    return sorted(name_of(each) for each in nodes)


@pytest.fixture(scope="session")
def hadoop(kube: Kube, workers: list[str]) -> Iterator[Hadoop]:
    running = Hadoop(kube, HDFS_IMAGE, workers[-1])
    running.start()
    yield running
    if not os.environ.get("KEEP"):
        kube.delete("namespace", "elastic-ctr-hdfs", wait=False)


@pytest.fixture(scope="session")
def clicks(hadoop: Hadoop) -> ClickLogs:
    """What the shared release trains on: two hours at its start, more as tests need them."""
    logs = ClickLogs(hadoop, "/train_data", BUILD / "hours")
    for hour in ("20200401/00", "20200401/01"):
        logs.publish(hour, 20_000)
    return logs


@pytest.fixture(scope="session")
def laptop(tmp_path_factory: pytest.TempPathFactory) -> Laptop:
    """What this machine trains and answers by itself."""
    return run_on_laptop(tmp_path_factory.mktemp("laptop"))


# -- the shared release --------------------------------------------------------------------------------------------------


def small_values(url: str, path: str) -> Values:
    """All roles, small enough for two cores; what tests wait for is set short."""
    grace = {"terminationGracePeriodSeconds": 60}

    def block(cpu: str, memory: str, **more: Any) -> Values:
        return {"resources": {"cpu": cpu, "memory": memory}, **more}

    return {
        "image": {"tag": IMAGE_TAG},
        "data": {
            "source": {"url": url, "user": "root"},
            "path": path,
            "start": "20200401/00",
            "sleepSeconds": 2,
            "slots": [str(number) for number in range(8)],
        },
        "model": {"partitions": 60, "embeddingDim": 9, "network": {"name": "slot-dnn", "layers": [64, 32]}},
        "tolerationSeconds": 20,
        "fileServer": block("40m", "256Mi", image=image_of(FILE_SERVER_IMAGE), persistence={"size": "2Gi"}),
        "master": block("50m", "512Mi"),
        "trainer": block("100m", "1536Mi", replicas=2, minReplicas=1, **grace),
        "pserver": block("80m", "1Gi", replicas=2, **grace),
        "cube": block(
            "50m",
            "512Mi",
            replicasPerShard=1,
            config={"shards": 2, "drainSeconds": 10},
            persistence={"sizeLimit": "2Gi"},
            **grace,
        ),
        "cubeTransfer": block("40m", "512Mi", builderResources={"cpu": "50m", "memory": "768Mi"}, config={"validationTimeoutSeconds": 30}),
        "serving": block(
            "100m", "1Gi", replicas=1, service={"type": "NodePort", "nodePort": NODE_PORT}, terminationGracePeriodSeconds=30
        ),
        "scoring": block("40m", "1Gi", persistence={"sizeLimit": "2Gi"}),
    }  # fmt: skip


def image_of(reference: str) -> Values:
    repository, _, tag = reference.rpartition(":")
    return {"repository": repository, "tag": tag}


@pytest.fixture(scope="session")
def base_values(hadoop: Hadoop, clicks: ClickLogs) -> Values:
    return small_values(hadoop.url, clicks.path)


@pytest.fixture(scope="session")
def stages() -> dict[str, float]:
    """Seconds of the install, by stage."""
    return {}


@pytest.fixture(scope="session")
def installed(kube: Kube, base_values: Values, stages: dict[str, float]) -> Iterator[Release]:
    """The release that most tests use; taken as it is where it is up already."""
    release = Release(kube, "ctr", NAMESPACE, BUILD / "values")
    kube.namespace(NAMESPACE, RESTRICTED)
    fresh = release.status() is None
    start = time.monotonic()
    release.upgrade(base_values)
    if fresh:
        stages["helm install"] = time.monotonic() - start
    yield release
    release.close()
    if not os.environ.get("KEEP"):
        release.uninstall()
        kube.delete("namespace", NAMESPACE, wait=False)


@pytest.fixture
def ctr(installed: Release, base_values: Values, kube: Kube, request: pytest.FixtureRequest) -> Iterator[Release]:
    """The shared release as `base_values` say, with a live version everywhere; whatever the last test did to it."""
    if installed.values != base_values:
        installed.upgrade(base_values)
    yield installed
    installed.close()


@pytest.fixture
def settled(ctr: Release) -> Release:
    """The shared release, rolled out, with a live version where it belongs."""
    ctr.wait_live()
    ctr.wait_rolled_out()
    ctr.wait_settled()
    return ctr


TWICE: Values = {"serving": {"replicas": 2}, "cube": {"replicasPerShard": 2}}
FOUR_SHARDS: Values = {"cube": {"config": {"shards": 4}}}


@contextmanager
def changed(release: Release, values: Values) -> Iterator[Release]:
    """The shared release with other values, settled. Tests in a row with the same values leave it so."""
    if release.values != values:
        release.upgrade(values)
    release.wait_live()
    release.wait_rolled_out()
    release.wait_settled()
    yield release
    release.close()


@pytest.fixture
def doubled(installed: Release, base_values: Values) -> Iterator[Release]:
    """The shared release with two of everything that answers."""
    with changed(installed, merged(base_values, TWICE)) as release:
        yield release


@pytest.fixture
def of_four_shards(installed: Release, base_values: Values) -> Iterator[Release]:
    with changed(installed, merged(base_values, FOUR_SHARDS)) as release:
        yield release


@pytest.fixture
def load(settled: Release, workers: list[str]) -> Iterator[Load]:
    """Asks from before the test's first step to its last."""
    with asked(settled, CUBE_IMAGE, workers[-1]) as asking:
        yield asking


# -- what is left behind -------------------------------------------------------------------------------------------------


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Figures of a test: printed, and kept in build/cluster/report.json."""

    def told(**figures: Any) -> None:
        file = BUILD / "report.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        report: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        report.setdefault(request.node.name, {}).update(figures)
        file.write_text(json.dumps(report, indent=1) + "\n")
        print(f"\n{request.node.name}: {json.dumps(figures)}")

    return told


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if report.failed and "kube" in getattr(item, "fixturenames", ()):  # type: ignore[attr-defined]
        kube = item.funcargs.get("kube")  # type: ignore[attr-defined]
        folder = BUILD / item.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "failure.txt").write_text(report.longreprtext)  # type: ignore[attr-defined]
        if isinstance(kube, Kube):
            for namespace in sorted(
                {name_of(each) for each in kube.all("namespaces") if name_of(each).startswith("elastic-ctr")}
            ):
                kube.dump(namespace, folder / namespace)
    return report
