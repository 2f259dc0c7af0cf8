"""Evictions, autoscaling and upgrades: what a cluster may take away, and who says how many there are."""

import base64
import re
import subprocess
from typing import Any

import pytest

from chart.api_server import install
from chart.cases import CLICKS_BY_HTTP
from chart.rendering import EXAMPLES, ROOT, Refused, Renderer, merged, on_top_of_smallest, read
from elastic_ctr.runtime.auth import tokens_in

AUTOSCALED = {"autoscaling": {"enabled": True, "minReplicas": 3, "maxReplicas": 6}}


def found_in_cluster(api_version: str, kind: str, name: str, **fields: Any) -> dict[str, Any]:
    """An object that this release installed before."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": "ads",
            "labels": {"app.kubernetes.io/managed-by": "Helm"},
            "annotations": {"meta.helm.sh/release-name": "ctr", "meta.helm.sh/release-namespace": "ads"},
        },
        **fields,
    }


@pytest.mark.parametrize(
    "values", [{}, *(read(file) for file in EXAMPLES)], ids=["default", *(f.stem for f in EXAMPLES)]
)
def test_every_budget_can_be_met(render: Renderer, values: dict[str, Any]) -> None:
    rendered = render(below=on_top_of_smallest(values))
    owners = [each for each in rendered.objects if each.kind in ("StatefulSet", "Deployment")]

    for budget in rendered.all("PodDisruptionBudget"):
        assert budget.spec.keys() & {"minAvailable", "maxUnavailable"} == {"maxUnavailable"}, budget.name
        assert budget.spec["maxUnavailable"] >= 1
        [_] = [each for each in owners if budget.selector.items() <= each.pod.labels.items()]


def test_only_cube_and_serving_have_a_disruption_budget(render: Renderer) -> None:
    """A budget on a singleton would block the drain of its node for ever, or promise nothing."""
    assert {each.component for each in render(**CLICKS_BY_HTTP).all("PodDisruptionBudget")} == {"cube", "serving"}


def test_an_evicted_pod_that_is_not_ready_blocks_no_drain(render: Renderer) -> None:
    for budget in render().all("PodDisruptionBudget"):
        assert budget.spec["unhealthyPodEvictionPolicy"] == "AlwaysAllow"


def test_copies_stand_on_several_nodes_where_that_is_possible(render: Renderer) -> None:
    rendered = render()
    for name in ("cube", "serving"):
        [spread] = rendered.pod_of(name).spec["topologySpreadConstraints"]
        assert spread["whenUnsatisfiable"] == "ScheduleAnyway"
        assert spread["labelSelector"]["matchLabels"].items() <= rendered.pod_of(name).labels.items()


def test_a_rolling_update_of_serving_never_has_fewer_pods_than_replicas(render: Renderer) -> None:
    rolling = render().one("Deployment", component="serving").spec["strategy"]["rollingUpdate"]

    assert (rolling["maxUnavailable"], rolling["maxSurge"]) == (0, 1)


def test_singletons_are_replaced_only_when_they_are_gone(render: Renderer) -> None:
    rendered = render(tracking={"enabled": True}, **CLICKS_BY_HTTP)

    for name in ("master", "cube-transfer", "file-server", "intake"):
        assert rendered.one("StatefulSet", component=name).replicas == 1
    # Two trackers on one database would spoil it.
    assert rendered.one("Deployment", component="tracking").spec["strategy"] == {"type": "Recreate"}


def test_the_autoscaler_knows_what_it_scales(render: Renderer) -> None:
    rendered = render(serving=AUTOSCALED)
    scaler = rendered.one("HorizontalPodAutoscaler")

    assert scaler.api_version == "autoscaling/v2"
    assert scaler.spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "ctr-serving"}
    assert (scaler.spec["minReplicas"], scaler.spec["maxReplicas"]) == (3, 6)
    assert scaler.spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 300


def test_without_an_autoscaler_the_values_set_the_replicas_of_serving() -> None:
    running = found_in_cluster("apps/v1", "Deployment", "ctr-serving", spec={"replicas": 5})

    assert install(objects=[running], serving={"replicas": 2}).one("Deployment").replicas == 2


def test_an_autoscaler_that_is_new_starts_with_the_pods_there_are() -> None:
    running = found_in_cluster("apps/v1", "Deployment", "ctr-serving", spec={"replicas": 5})

    assert install(objects=[running], serving=AUTOSCALED).one("Deployment").replicas == 5


def test_an_autoscaler_of_the_release_alone_sets_the_replicas_of_serving() -> None:
    """Who renders with a cluster's kinds but cannot look anything up, as Argo CD does, would set the count back each time."""
    assert "replicas" not in install(serving=AUTOSCALED).one("Deployment").spec


def test_a_deployment_sets_no_replicas_once_the_cluster_has_an_autoscaler() -> None:
    running = found_in_cluster("apps/v1", "Deployment", "ctr-serving", spec={"replicas": 5})
    scaler = found_in_cluster("autoscaling/v2", "HorizontalPodAutoscaler", "ctr-serving", spec={})

    assert "replicas" not in install(objects=[running, scaler], serving=AUTOSCALED).one("Deployment").spec


def rights_of(secret: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """The tokens of each right, as roles read them."""
    texts = {key: base64.b64decode(value) for key, value in secret["data"].items()}
    return {key: [(name, token) for name, token in tokens_in(text, key)] for key, text in texts.items()}


def secret_in_cluster(name: str, **texts: str) -> Any:
    return found_in_cluster(
        "v1", "Secret", name, data={key: base64.b64encode(text.encode()).decode() for key, text in texts.items()}
    )


def test_tokens_are_made_once_and_kept() -> None:
    given = {"clicks": "web one\nshop two\n", "operate": "ann three", "internal": "release four\n"}

    kept = rights_of(install(objects=[secret_in_cluster("ctr-auth", **given)]).one("Secret").raw)

    assert kept == {
        "clicks": [("web", "one"), ("shop", "two")], "operate": [("ann", "three")], "internal": [("release", "four")]
    }  # fmt: skip


def test_new_tokens_are_long_and_never_the_same() -> None:
    made = [rights_of(install().one("Secret").raw) for _ in range(2)]
    words = [token for each in made for [(name, token)] in each.values()]

    assert [each.keys() for each in made] == [{"clicks", "operate", "internal"}] * 2
    assert all(len(word) >= 32 for word in words)
    assert len(set(words)) == 6


def test_a_rendering_without_a_cluster_is_refused_with_the_command_that_makes_the_tokens(render: Renderer) -> None:
    refusal = render.refusal(auth={"existingSecret": ""})
    command = re.findall(r" by (kubectl create secret .*)", refusal)[0]

    # A shell takes the quotes away; openssl prints other digits each time.
    stand_ins = "kubectl() { printf '%s\\0' \"$@\"; }; openssl() { echo $#abc; }"
    made = subprocess.run(["bash", "-c", f"{stand_ins}; {command}"], capture_output=True, text=True, check=True)

    assert "auth.existingSecret is empty, and Helm renders without looking into a cluster" in refusal
    words, pairs = made.stdout.split("\0")[:-1], "--from-literal="
    assert [each for each in words if not each.startswith(pairs)] == [
        "create", "secret", "generic", "ctr-tokens", "--namespace", "ads",
    ]  # fmt: skip
    texts = dict(each.removeprefix(pairs).split("=", 1) for each in words if each.startswith(pairs))
    assert {right: tokens_in(text.encode(), right) for right, text in texts.items()} == {
        "clicks": (("web", "3abc"),), "operate": (("ops", "3abc"),), "internal": (("release", "3abc"),),
    }  # fmt: skip


def test_an_install_into_a_namespace_that_it_creates_makes_tokens() -> None:
    default = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}}

    assert install(in_every_namespace=[default]).one("Secret").name == "ctr-auth"


def test_kinds_of_a_cluster_without_its_objects_make_no_tokens() -> None:
    """Argo CD gives Helm the kinds of the cluster, and looks nothing up."""
    with pytest.raises(Refused, match=r"auth\.existingSecret is empty"):
        install(in_every_namespace=[])


def test_the_one_token_of_an_earlier_release_goes_on_between_roles_and_for_clicks() -> None:
    secret = install(objects=[secret_in_cluster("ctr-auth", token="former-token")]).one("Secret").raw
    # Pods of the earlier release, which a rollback starts again, mount this key.
    assert base64.b64decode(secret["data"].pop("token")) == b"former-token"
    made = rights_of(secret)

    assert made["internal"] == [("release", "former-token")]
    assert made["clicks"][1:] == [("former", "former-token")]
    assert "former-token" not in {token for _, token in made["operate"]}


def test_tokens_of_ones_own_are_used_and_none_are_made(render: Renderer) -> None:
    rendered = render(auth={"existingSecret": "mine"})

    assert rendered.all("Secret") == []
    [volume] = [each for each in rendered.pod_of("master").volumes.values() if "secret" in each]
    items = [{"key": right, "path": right} for right in ("internal", "operate")]
    assert volume["secret"] == {"secretName": "mine", "items": items}


def test_a_secret_with_the_one_token_of_an_earlier_release_is_refused_naming_its_keys() -> None:
    with pytest.raises(
        Refused, match=r"auth\.existingSecret mine has no key internal and no key operate: there are three"
    ):
        install(objects=[secret_in_cluster("mine", token="former-token")], auth={"existingSecret": "mine"})

    whole = secret_in_cluster("mine", operate="ann one", internal="release two")
    assert install(objects=[whole], auth={"existingSecret": "mine"}).all("Secret") == []


INTAKE_AND_TRACKING: dict[str, Any] = {**CLICKS_BY_HTTP, "tracking": {"enabled": True}}


def test_claims_outlive_their_release_unless_the_values_say_otherwise(render: Renderer) -> None:
    def retention(**values: Any) -> set[str]:
        rendered = render(**merged(INTAKE_AND_TRACKING, values))
        kept = rendered.one("PersistentVolumeClaim").annotations.get("helm.sh/resource-policy") == "keep"
        own = {each["whenDeleted"] for each in policies(render, **merged(INTAKE_AND_TRACKING, values)).values()}
        return own | {"Retain" if kept else "Delete"}

    blocks = ("master", "cubeTransfer", "fileServer", "intake", "tracking")
    assert retention() == {"Retain"}
    assert retention(**{name: {"persistence": {"keep": False}} for name in blocks}) == {"Delete"}


def test_the_notes_name_what_an_uninstall_deletes_and_a_pod_loses(render: Renderer) -> None:
    def noted(**persistence: Any) -> list[str]:
        values: dict[str, Any] = {name: {"persistence": persistence} for name in ("master", "fileServer")}
        notes = render(**values).notes
        return [each for each in notes.splitlines() if "persistence" in each]

    assert noted() == []
    assert noted(keep=False) == [
        "NOTE: model versions are deleted with this release (`helm uninstall`): set fileServer.persistence.keep=true to keep them.",
        "NOTE: the records of the ledger are deleted with this release (`helm uninstall`): set master.persistence.keep=true to keep them.",
    ]
    assert ["lost with the pod" in each for each in noted(enabled=False)] == [True, True]


def test_the_notes_name_a_registry_where_this_project_has_no_images(render: Renderer) -> None:
    def warns(**values: Any) -> bool:
        return "where this project has no images" in render(**values).notes

    assert warns()
    assert not warns(image={"registry": "registry.example.com"})
    assert not warns(**{"global": {"imageRegistry": "registry.example.com"}})


def test_a_reinstall_takes_up_the_secret_and_the_claim_that_an_uninstall_left() -> None:
    secret = secret_in_cluster("ctr-auth", internal="release a", operate="release b", clicks="release c")
    claim = found_in_cluster("v1", "PersistentVolumeClaim", "ctr-tracking")

    again = install(objects=[secret, claim], tracking={"enabled": True})

    assert again.one("Secret").annotations["helm.sh/resource-policy"] == "keep"
    assert rights_of(again.one("Secret").raw)["clicks"] == [("release", "c")]
    del claim["metadata"]["annotations"]
    with pytest.raises(Refused, match="cannot be imported into the current release"):
        install(objects=[claim], tracking={"enabled": True})


def test_the_command_that_deletes_the_data_selects_all_that_an_uninstall_leaves() -> None:
    page = (ROOT / "docs" / "operations" / "uninstall.md").read_text()
    kinds, selector = re.findall(r"^kubectl delete (\S+) --selector (\S+) --namespace ctr$", page, re.MULTILINE)[0]
    wanted = dict(each.split("=") for each in selector.split(","))
    rendered = install(**INTAKE_AND_TRACKING)

    left = [each.labels for kind in ("Secret", "PersistentVolumeClaim") for each in rendered.all(kind)]
    left += [
        claim["metadata"]["labels"]
        for each in rendered.all("StatefulSet")
        for claim in each.spec.get("volumeClaimTemplates", [])
    ]
    assert kinds == "pvc,secret"
    assert len(left) == 6
    assert [labels for labels in left if not wanted.items() <= labels.items()] == []


def test_scaling_down_deletes_the_volume_of_a_replica_of_cube_and_retains_every_other(render: Renderer) -> None:
    kept = {
        name: each["whenScaled"] for name, each in policies(render, cube={"persistence": {"enabled": True}}).items()
    }

    shards = {name for name in kept if "-cube-s" in name}
    assert shards
    assert {kept[name] for name in shards} == {"Delete"}
    assert {kept[name] for name in kept.keys() - shards} == {"Retain"}


def policies(render: Renderer, **values: Any) -> dict[str, dict[str, str]]:
    """By StatefulSet, what becomes of its claims."""
    claimed = [each for each in render(**values).all("StatefulSet") if "volumeClaimTemplates" in each.spec]
    return {each.name: each.spec["persistentVolumeClaimRetentionPolicy"] for each in claimed}


def test_a_pod_that_never_becomes_ready_keeps_no_mended_one_from_coming(render: Renderer) -> None:
    """Ordered pods do: https://github.com/kubernetes/kubernetes/issues/67250."""
    assert {each.spec["podManagementPolicy"] for each in render().all("StatefulSet")} == {"Parallel"}


def test_the_charts_own_secret_may_become_one_of_ones_own() -> None:
    """An upgrade then leaves it out of the manifest, and Helm leaves it in the namespace by its annotation."""
    made = secret_in_cluster("ctr-auth", internal="release a", operate="release b", clicks="release c")
    made["metadata"]["annotations"]["helm.sh/resource-policy"] = "keep"

    assert install(objects=[made], auth={"existingSecret": "ctr-auth"}).all("Secret") == []
