"""Containers run commands that exist, from images that this version names."""

import re
from typing import Any

import pytest
import typer

from chart.cases import CLICKS_BY_HTTP
from chart.rendering import SMALLEST, Container, Pod, Rendered, Renderer, merged
from elastic_ctr.operate.cli.main import build

TREE = typer.main.get_command(build())
IMAGE_OF = {
    "master": "cube", "cube-transfer": "cube", "cube-builder": "cube", "cube-server": "cube", "intake": "cube",
    "trainer": "trainer", "pserver": "trainer", "serving": "serving", "scoring": "serving", "check": "cube",
}  # fmt: skip


def wrong_with(words: list[str]) -> str | None:
    """The first word of a command line that elastic-ctr does not know."""
    command: Any = TREE
    rest = list(words)
    while rest and hasattr(command, "commands"):
        word = rest.pop(0)
        if word not in command.commands:
            return word
        command = command.commands[word]
    known = {name: each for each in command.params for name in (*each.opts, *each.secondary_opts)}
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            if word not in known:
                return word
            if not known[word].is_flag:
                rest.pop(0)
    return None


def own(container: Container) -> bool:
    return "/elastic-ctr/" in container.image


def test_a_wrong_command_is_found() -> None:
    assert wrong_with(["cube", "drian"]) == "drian"
    assert wrong_with(["master", "--confg", "x"]) == "--confg"
    assert wrong_with(["master"]) is None


def test_every_container_of_ours_runs_a_command_that_exists(rendered: Rendered) -> None:
    for pod in rendered.pods:
        for each in pod.containers:
            if own(each):
                assert "command" not in each.raw, "the image's entrypoint is elastic-ctr"
                assert wrong_with(each.args) is None, f"{pod.owner}: {each.args}"


def test_every_hook_of_ours_runs_a_command_that_exists(rendered: Rendered) -> None:
    for pod in rendered.pods:
        for each in pod.containers:
            for hook in each.raw.get("lifecycle", {}).values():
                if own(each) and "exec" in hook:
                    program, *words = hook["exec"]["command"]
                    assert program == "elastic-ctr" or (program, len(words)) == ("sleep", 1)
                    assert program == "sleep" or wrong_with(words) is None, words


def test_each_command_runs_from_its_image(rendered: Rendered) -> None:
    for pod in rendered.pods:
        for each in pod.containers:
            if own(each):
                # The master of a table has the trainers' image.
                images = {IMAGE_OF[each.args[0]], *(["trainer"] if each.args[0] == "master" else ())}
                assert re.split("[:@]", each.image.split("/")[-1])[0] in images, each.args


def test_each_role_runs_in_a_container_of_its_name(rendered: Rendered) -> None:
    for pod in rendered.pods:
        if not pod.owner.startswith("Pod/"):
            others = {"cube": {"cube-server"}, "cube-transfer": {"cube-transfer", "cube-builder"}}
            # An operator's own is in everything-on.yaml.
            assert {each.name for each in pod.containers} - {"pages"} == others.get(pod.component, {pod.component})
            assert all(each.args == [each.name] for each in pod.containers if own(each))


def images(rendered: Rendered) -> set[str]:
    return {each.image for pod in rendered.pods for each in [*pod.init_containers, *pod.containers]}


def test_images_are_of_this_version_and_never_latest(render: Renderer) -> None:
    rendered = render(tracking={"enabled": True})
    version = str(rendered.objects[0].labels["app.kubernetes.io/version"])

    for image in images(rendered):
        assert re.fullmatch(r"[\w.-]+(:\d+)?(/[\w.-]+)+:[\w.-]+", image), image
        assert not image.endswith(":latest")
        if "/elastic-ctr/" in image:
            assert image.endswith(f":{version}")


def test_a_registry_and_a_tag_are_set_once_for_all(render: Renderer) -> None:
    rendered = render(image={"registry": "registry.example.org:5000", "tag": "9.9"})

    assert {each for each in images(rendered) if "/elastic-ctr/" in each} == {
        f"registry.example.org:5000/elastic-ctr/{name}:9.9" for name in ("trainer", "cube", "serving")
    }


def test_a_mirror_holds_every_image(render: Renderer) -> None:
    mirrored: dict[str, Any] = {"global": {"imageRegistry": "mirror.example.org"}}
    rendered = render(tracking={"enabled": True}, **mirrored)

    assert {each.partition("/")[0] for each in images(rendered)} == {"mirror.example.org"}


def test_a_digest_goes_before_a_tag(render: Renderer) -> None:
    digest = f"sha256:{'0' * 64}"
    rendered = render(cube={"image": {"digest": digest}})

    assert {each.image for each in rendered.pod_of("cube").containers} == {f"docker.io/elastic-ctr/cube@{digest}"}


def test_nothing_is_pulled_twice(rendered: Rendered) -> None:
    assert {each.raw["imagePullPolicy"] for pod in rendered.pods for each in pod.containers} == {"IfNotPresent"}


def test_secrets_for_pulling_reach_every_pod(render: Renderer) -> None:
    secrets: dict[str, Any] = {"image": {"pullSecrets": ["a"]}, "global": {"imagePullSecrets": ["b", "a"]}}
    rendered = render(**secrets)

    assert {str(pod.spec["imagePullSecrets"]) for pod in rendered.pods} == {str([{"name": "a"}, {"name": "b"}])}


def test_the_tests_ask_the_doors_of_this_release(render: Renderer) -> None:
    rendered = render(serving={"config": {"port": 9400}}, cubeTransfer={"config": {"port": 9300}})
    words = {pod.owner: pod.containers[0].args for pod in rendered.pods if pod.owner.startswith("Pod/ctr-test-")}

    assert words == {
        "Pod/ctr-test-cube-seek": ["check", "cube", "--transfer", "ctr-cube-transfer:9300"],
        "Pod/ctr-test-serving-predict": ["check", "serving", "--address", "ctr-serving:9400"],
    }


def test_a_test_of_what_is_off_is_not_run(render: Renderer) -> None:
    rendered = render(serving={"enabled": False})

    assert [pod.owner for pod in rendered.pods if pod.component == "client"] == ["Pod/ctr-test-cube-seek"]


def test_more_environment_volumes_and_labels_reach_the_containers(render: Renderer) -> None:
    extra = {
        "extraEnv": {"TZ": "UTC", "NODE": {"valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}},
        "extraVolumes": {"more": {"emptyDir": {}}},
        "extraVolumeMounts": {"/more": {"name": "more"}},
        "podLabels": {"team": "ads"},
        "podAnnotations": {"note": "x"},
    }
    names = ("master", "trainer", "pserver", "cube", "cubeTransfer", "intake", "serving", "scoring", "fileServer")
    blocks: dict[str, Any] = {**dict.fromkeys(names, extra), "tracking": {**extra, "enabled": True}}
    rendered = render(**merged(CLICKS_BY_HTTP, blocks))

    for pod in rendered.pods:
        if pod.owner.startswith("Pod/"):
            continue
        assert pod.labels["team"] == "ads", pod.owner
        assert pod.metadata["annotations"]["note"] == "x"
        for each in pod.containers:
            assert each.env["TZ"] == "UTC"
            assert each.env["NODE"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
            assert each.mounts["/more"]["name"] == "more"


def checks(rendered: Rendered) -> list[Pod]:
    """The pods that are hooks of Helm."""
    return [pod for pod in rendered.pods if pod.owner.startswith("Pod/")]


# Keys of every pod that say where it runs and what the cluster knows about it.
PLACED: dict[str, Any] = {
    "nodeSelector": {"disk": "ssd"},
    "tolerations": [{"key": "batch", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "priorityClassName": "high",
    "podLabels": {"team": "ads"},
    "podAnnotations": {"note": "x"},
}


@pytest.mark.parametrize("block", ["podDefaults", "check"])
def test_a_check_before_an_install_or_of_helm_test_runs_where_other_pods_do(block: str, render: Renderer) -> None:
    found = checks(render(below=merged(SMALLEST, {block: PLACED})))

    assert {pod.component for pod in found} == {"check-values", "client"}
    for pod in found:
        assert pod.labels["team"] == "ads", pod.owner
        assert pod.metadata["annotations"]["note"] == "x"
        assert "helm.sh/hook" in pod.metadata["annotations"]
        assert pod.spec["nodeSelector"] == {"kubernetes.io/arch": "amd64", "disk": "ssd"}
        assert PLACED["tolerations"][0] in pod.spec["tolerations"]
        assert pod.spec["affinity"] == PLACED["affinity"]
        assert pod.spec["priorityClassName"] == "high"


def test_a_check_has_the_resources_and_labels_of_its_own_block(render: Renderer) -> None:
    resources = {"cpu": "1", "memory": "1Gi"}
    mine = {"resources": resources, "podLabels": {"sidecar.istio.io/inject": "false"}}

    for pod in checks(render(check=mine, podDefaults={"podLabels": {"sidecar.istio.io/inject": "true"}})):
        assert pod.labels["sidecar.istio.io/inject"] == "false", pod.owner
        [container] = pod.containers
        assert container.raw["resources"] == {"requests": resources, "limits": {"memory": "1Gi"}}


@pytest.mark.parametrize(
    "key", ["probes", "extraEnv", "extraVolumes", "extraVolumeMounts", "topologySpreadConstraints"]
)
def test_a_check_refuses_keys_that_it_has_no_use_for(key: str, render: Renderer) -> None:
    assert key in render.refusal(check={key: []})
