"""Cube: a StatefulSet for each shard, and nothing in a pod that would restart it when shards or copies change."""

import json

import pytest

from chart.rendering import Rendered, Renderer


def scaled(render: Renderer, shards: int, copies: int) -> Rendered:
    return render(cube={"replicasPerShard": copies, "config": {"shards": shards}})


def test_each_shard_is_one_statefulset_of_its_copies(render: Renderer) -> None:
    sets = scaled(render, shards=3, copies=2).all("StatefulSet", component="cube")

    assert [(each.name, each.replicas) for each in sets] == [("ctr-cube-s0", 2), ("ctr-cube-s1", 2), ("ctr-cube-s2", 2)]


def test_more_than_nine_shards_are_as_many_statefulsets(render: Renderer) -> None:
    names = {each.name for each in scaled(render, shards=12, copies=1).all("StatefulSet", component="cube")}

    assert names == {f"ctr-cube-s{shard}" for shard in range(12)}


def test_a_shard_has_all_its_copies_at_once_under_one_service(render: Renderer) -> None:
    rendered = scaled(render, shards=2, copies=2)

    for each in rendered.all("StatefulSet", component="cube"):
        assert each.spec["podManagementPolicy"] == "Parallel"
        assert each.spec["serviceName"] == rendered.one("Service", component="cube").name == "ctr-cube"


def test_the_pods_of_one_shard_are_not_those_of_another(render: Renderer) -> None:
    sets = scaled(render, shards=3, copies=1).all("StatefulSet", component="cube")

    for each in sets:
        others = [other.pod.labels for other in sets if other is not each]
        assert not any(each.selector.items() <= labels.items() for labels in others)


def test_each_shard_has_a_budget_of_its_own(render: Renderer) -> None:
    rendered = scaled(render, shards=3, copies=2)
    sets = {each.name: each for each in rendered.all("StatefulSet", component="cube")}

    for budget in rendered.all("PodDisruptionBudget", component="cube"):
        assert budget.spec["maxUnavailable"] == 1
        covered = [name for name, each in sets.items() if budget.selector.items() <= each.pod.labels.items()]
        assert covered == [budget.name]


def without_shard(text: str, shard: int) -> str:
    return text.replace(f"ctr-cube-s{shard}", "ctr-cube-sN").replace(f'"elastic-ctr/shard": "{shard}"', "N")


@pytest.mark.parametrize(("shards", "copies"), [(1, 1), (2, 1), (4, 1), (12, 3), (60, 64)])
def test_nothing_of_a_pod_changes_with_shards_or_copies(render: Renderer, shards: int, copies: int) -> None:
    def pods(of: Rendered) -> dict[str, str]:
        return {
            each.name: json.dumps(each.raw["spec"]["template"], sort_keys=True)
            for each in of.all("StatefulSet", component="cube")
        }

    first, other = pods(scaled(render, shards=2, copies=1)), pods(scaled(render, shards=shards, copies=copies))

    assert all(other[name] == first[name] for name in first.keys() & other.keys())
    assert len({without_shard(text, int(name.rpartition("-s")[2])) for name, text in {**first, **other}.items()}) == 1


@pytest.mark.parametrize(("shards", "copies"), [(1, 1), (4, 2), (60, 1)])
def test_the_file_of_a_pod_is_byte_equal_for_any_shards_and_copies(render: Renderer, shards: int, copies: int) -> None:
    def text(of: Rendered) -> str:
        return str(of.one("ConfigMap", component="cube").raw["data"])

    assert text(scaled(render, shards=shards, copies=copies)) == text(scaled(render, shards=2, copies=1))


@pytest.mark.parametrize(("shards", "copies"), [(4, 1), (2, 2)])
def test_a_rescale_touches_only_cube_and_transfers_file(render: Renderer, shards: int, copies: int) -> None:
    def objects(of: Rendered) -> dict[tuple[str, str], str]:
        lasting = [each for each in of.objects if each.kind != "Secret" and each.component != "check-values"]
        return {(each.kind, each.name): json.dumps(each.raw) for each in lasting}

    before, after = objects(scaled(render, shards=2, copies=1)), objects(scaled(render, shards=shards, copies=copies))
    changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}

    assert {key for key in changed if not key[1].startswith("ctr-cube-s")} == {
        ("ConfigMap", "ctr-cube-transfer"),
        ("StatefulSet", "ctr-cube-transfer"),
    }


def test_a_terminating_pod_has_ten_minutes_to_drain(render: Renderer) -> None:
    pod = render().pod_of("cube")

    assert pod.spec["terminationGracePeriodSeconds"] == 600
    # SIGTERM starts the drain.
    assert "lifecycle" not in pod.container("cube-server").raw


def test_parts_are_in_an_emptydir_unless_they_have_a_volume(render: Renderer) -> None:
    pod = render().pod_of("cube")

    cache = pod.container("cube-server").mounts["/var/lib/elastic-ctr/cube"]["name"]
    assert pod.volumes[cache]["emptyDir"]["sizeLimit"] == "20Gi"


def test_parts_may_have_a_volume(render: Renderer) -> None:
    [*sets] = render(cube={"persistence": {"enabled": True, "size": "5Gi"}}).all("StatefulSet", component="cube")

    for each in sets:
        [claim] = each.spec["volumeClaimTemplates"]
        assert claim["spec"]["resources"]["requests"]["storage"] == "5Gi"
        assert claim["metadata"]["name"] in {mount["name"] for mount in each.pod.containers[0].mounts.values()}
