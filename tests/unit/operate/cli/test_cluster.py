import base64
import re
from pathlib import Path
from typing import Any

import pytest
import typer

from elastic_ctr.operate.cli.cluster import (
    Cluster,
    Pod,
    PortForwards,
    Target,
    port_forwards,
    target_of,
)
from elastic_ctr.operate.cli.kubectl import Kubectl, KubectlFailed
from elastic_ctr.operate.cli.shared_options import MASTER_STATUS, PREDICTIONS, SERVING_ADMIN, TRANSFER, Endpoint, Where
from elastic_ctr.operate.local.run_folder import RunFolder, RunInfo
from elastic_ctr.runtime.auth import Right
from elastic_ctr.runtime.lock import StateLock
from operate.cli.fake_kubectl import FakeKubectl, pod, release

TEMPLATES = Path(__file__).parents[4] / "charts" / "elastic-ctr" / "templates"


@pytest.fixture
def cluster(kubectl: FakeKubectl) -> Cluster:
    return Cluster(Kubectl.found("ns", None), "ctr")


def encoded(token: str) -> str:
    return base64.b64encode(token.encode()).decode()


def test_pods_are_found_by_the_labels_of_the_chart(cluster: Cluster, kubectl: FakeKubectl) -> None:
    kubectl.say(pods=[*release(), pod("another-master-0", "master", release="another")])

    assert [each.name for each in cluster.pods()] == [
        "ctr-cube-s0-0", "ctr-cube-transfer-0", "ctr-master-0", "ctr-serving-7c4d-x1",
    ]  # fmt: skip
    assert [each.name for each in cluster.pods("cube")] == ["ctr-cube-s0-0"]
    assert "app.kubernetes.io/part-of=elastic-ctr,app.kubernetes.io/instance=ctr" in kubectl.calls[0]
    assert cluster.selector_of("cube") == (
        "app.kubernetes.io/part-of=elastic-ctr,app.kubernetes.io/instance=ctr,app.kubernetes.io/component=cube"
    )


def test_a_release_that_is_not_there_is_refused_with_those_that_are(cluster: Cluster, kubectl: FakeKubectl) -> None:
    kubectl.say(pods=[pod("a-master-0", "master", release="a"), pod("b-master-0", "master", release="b")])
    with pytest.raises(KubectlFailed, match="namespace ns has no pods of release ctr; there are a, b: say --release"):
        cluster.pods()
    kubectl.say(pods=[])
    with pytest.raises(KubectlFailed, match="has no pods of release ctr; is it another namespace"):
        cluster.pods()


@pytest.mark.parametrize(
    ("status", "state", "ready"),
    [
        ({}, "Running", True),
        ({"conditions": [{"type": "Ready", "status": "False"}]}, "Running", False),
        (
            {"phase": "Pending", "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}],
             "conditions": []},
            "Pending: ImagePullBackOff", False,
        ),
        (
            {"phase": "Pending", "containerStatuses": [],
             "conditions": [{"type": "PodScheduled", "status": "False", "message": "3/3 tasks in gang unschedulable"}]},
            "Pending: 3/3 tasks in gang unschedulable", False,
        ),
    ],
)  # fmt: skip
def test_a_pod_says_why_it_does_not_run(status: dict[str, Any], state: str, ready: bool) -> None:
    found = Pod.read(pod("ctr-master-0", "master", **status))

    assert (found.state, found.ready) == (state, ready)
    assert found.as_dict()["state"] == state


def test_the_pod_that_is_asked_runs_and_is_ready_if_one_is(cluster: Cluster, kubectl: FakeKubectl) -> None:
    going = pod("ctr-serving-1", "serving")
    going["metadata"]["deletionTimestamp"] = "2026-08-23T10:00:00Z"
    unready = pod("ctr-serving-2", "serving", conditions=[{"type": "Ready", "status": "False"}])
    kubectl.say(pods=[going, unready, pod("ctr-serving-3", "serving")])
    assert cluster.pod("serving").name == "ctr-serving-3"
    kubectl.say(pods=[going, unready])
    assert cluster.pod("serving").name == "ctr-serving-2"
    kubectl.say(pods=[going, pod("ctr-serving-4", "serving", phase="Pending")])
    with pytest.raises(KubectlFailed, match="no pod of serving runs in namespace ns: ctr-serving-1 is Running; ctr-s"):
        cluster.pod("serving")
    with pytest.raises(KubectlFailed, match="no pod of master runs in namespace ns: there is none"):
        cluster.pod("master")


def test_a_door_is_the_port_of_its_name_or_the_default() -> None:
    named = Pod.read(pod("ctr-master-0", "master", ports={"control": 1, "status": 2}))

    assert named.port(MASTER_STATUS) == 2
    assert Pod.read(pod("ctr-master-0", "master")).port(MASTER_STATUS) == 8701


@pytest.mark.parametrize("door", [MASTER_STATUS, TRANSFER, SERVING_ADMIN, PREDICTIONS], ids=lambda each: each.port_name)
def test_doors_have_the_names_that_the_chart_gives_them(door: Endpoint) -> None:
    found = [*(TEMPLATES / door.component).glob("statefulset.yaml"), *(TEMPLATES / door.component).glob("deploy*.yaml")]
    if not found:
        pytest.skip(f"the chart has no {door.component}")
    [template] = found

    assert re.search(rf"- name: {door.port_name}\n\s+containerPort:", template.read_text())


def test_the_token_is_that_of_the_secret_that_transfer_has_mounted(cluster: Cluster, kubectl: FakeKubectl) -> None:
    mounted = pod("ctr-cube-transfer-0", "cube-transfer")
    mounted["spec"]["volumes"] = [
        {"name": "other", "secret": {"secretName": "other", "items": [{"key": "x", "path": "operate"}]}},
        {"name": "auth", "secret": {"secretName": "mine", "items": [{"key": "password", "path": "operate"}]}},
    ]
    kubectl.say(pods=[mounted], secrets={"mine": {"password": encoded("ann s3cret\n")}})

    assert cluster.tokens().valid() == (("ann", "s3cret"),)


@pytest.mark.parametrize(
    ("secrets", "reason"),
    [
        (
            {},
            r"the token is in Secret ctr-auth \(kubectl get secret: Error from server \(Forbidden\).*say --token-file",
        ),
        ({"ctr-auth": {"other": "eA=="}}, "Secret ctr-auth holds no token under operate; say --token-file"),
        ({"ctr-auth": {"operate": "%%%"}}, "Secret ctr-auth holds no token under operate"),
        ({"ctr-auth": None}, "Secret ctr-auth holds no token under operate"),
    ],
)
def test_a_token_that_cannot_be_read_is_asked_for(
    secrets: dict[str, Any], reason: str, cluster: Cluster, kubectl: FakeKubectl
) -> None:
    kubectl.say(secrets=secrets)

    with pytest.raises(KubectlFailed, match=reason):
        cluster.tokens()


def test_a_pod_without_a_token_is_of_another_chart(cluster: Cluster, kubectl: FakeKubectl) -> None:
    other = pod("ctr-cube-transfer-0", "cube-transfer")
    other["spec"]["volumes"] = [{"name": "tmp", "emptyDir": {}}]
    kubectl.say(pods=[other])

    with pytest.raises(KubectlFailed, match="pod ctr-cube-transfer-0 has no tokens of operators mounted"):
        cluster.tokens()


def test_a_door_stays_open_until_it_is_forgotten_or_ends(cluster: Cluster, kubectl: FakeKubectl) -> None:
    kubectl.say(forward={"ctr-master-0:8701": 40001})
    doors = PortForwards(cluster)

    assert doors.address(MASTER_STATUS) == doors.address(MASTER_STATUS) == "127.0.0.1:40001"
    [first] = kubectl.running()
    doors.forget(MASTER_STATUS)
    assert kubectl.running() == []
    assert doors.address(MASTER_STATUS) == "127.0.0.1:40001"
    [second] = kubectl.running()
    assert first != second
    doors.close()
    assert kubectl.running() == []


def test_a_door_whose_pod_has_gone_is_opened_to_the_next(cluster: Cluster, kubectl: FakeKubectl) -> None:
    kubectl.say(forward={"ctr-serving-7c4d-x1:8401": 40001, "ctr-serving-9:8401": 40002})
    with port_forwards(cluster) as doors:
        assert doors.address(SERVING_ADMIN) == "127.0.0.1:40001"
        kubectl.say(pods=[pod("ctr-serving-9", "serving")])
        doors._open[SERVING_ADMIN]._process.terminate()
        doors._open[SERVING_ADMIN]._process.wait()

        assert doors.address(SERVING_ADMIN) == "127.0.0.1:40002"


def test_addresses_are_taken_as_they_are(cluster: Cluster, kubectl: FakeKubectl) -> None:
    kubectl.say(forward={"ctr-cube-transfer-0:8300": 40001})

    with Target(None, None).reached(TRANSFER, "there:8300") as found:
        assert found == "there:8300"
    with Target(None, None).reached(TRANSFER, None) as found:
        assert found == "127.0.0.1:8300"
    assert kubectl.calls == []
    with Target(cluster, None).reached(TRANSFER, None) as found:
        assert found == "127.0.0.1:40001"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    run.write(RunInfo("m:1", "t:2", "s:3", ["p:4", "p:8"], "clicks"))
    return run


def test_a_run_is_known_by_its_folder(run: RunFolder) -> None:
    run.tokens.mkdir()
    run.token_file(Right.OPERATE).write_text("ann secret\n")
    target = target_of(Where(folder=run.path), {"--address": None})

    with StateLock(run.path / "state"):
        addresses = [target.address(door) for door in (MASTER_STATUS, TRANSFER, SERVING_ADMIN, PREDICTIONS)]
        with target.reached(TRANSFER, "there:8300") as given:
            pass

    assert addresses == ["m:1", "t:2", "s:3", "p:4"]
    assert given == "there:8300"
    assert (target.model(None), target.model("other")) == ("clicks", "other")
    found = target.tokens(None)
    assert found is not None
    assert found.valid() == (("ann", "secret"),)


def test_the_run_in_the_folder_of_default_is_found_without_an_option(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.path.parent)
    run.path.rename(run.path.parent / "elastic-ctr-local")
    with StateLock(run.path.parent / "elastic-ctr-local" / "state"):
        assert target_of(Where(), {}).address(TRANSFER) == "t:2"


def test_a_run_that_has_ended_is_said_with_its_end_and_a_folder_without_one_by_its_absolute_path(
    run: RunFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run.write(RunInfo("m:1", "t:2", "s:3", ["p:4"], "ctr", ended_at=0.0, ended="pass 20200401/00 is stopped: 3 lines"))

    with pytest.raises(typer.Exit) as ended:
        target_of(Where(folder=run.path), {}).address(TRANSFER)
    with pytest.raises(typer.Exit) as absent:
        target_of(Where(folder=tmp_path / "nowhere"), {})

    said = capsys.readouterr().err
    assert (ended.value.exit_code, absent.value.exit_code) == (2, 2)
    assert f"nothing runs in {run.path}; the run ended at 19" in said
    assert "pass 20200401/00 is stopped: 3 lines" in said
    assert f"nothing runs in {tmp_path}/nowhere: no run was ever started there" in said


def test_either_a_namespace_or_addresses_are_meant(
    kubectl: FakeKubectl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (str(kubectl.path),)
    assert target_of(Where(), {"--address": "x:1"}) == Target(None, None)
    found = target_of(Where(namespace="ns"), {"--address": None})
    assert found.cluster == Cluster(Kubectl(program, "ns", None), "ctr")
    other = target_of(Where(namespace="ns", release="other", context="there"), {})
    assert other.cluster == Cluster(Kubectl(program, "ns", "there"), "other")
    for where, addresses, reason in (
        (
            Where(namespace="ns"),
            {"--address": "x:1", "--serving": "y:2"},
            "say either --namespace, or --address and --s",
        ),
        (Where(namespace="ns", folder=Path("run")), {}, "say either --namespace, or --dir: not both"),
        (Where(release="other"), {}, "--release and --context say which release of a --namespace is meant"),
        (Where(context="there"), {}, "say that as well"),
    ):
        with pytest.raises(typer.Exit) as refused:
            target_of(where, addresses)
        assert refused.value.exit_code == 2
        assert reason in capsys.readouterr().err
    monkeypatch.setenv("KUBECTL", "/nowhere/kubectl")
    with pytest.raises(typer.Exit):
        target_of(Where(namespace="ns"), {})
    assert "/nowhere/kubectl is not there" in capsys.readouterr().err
