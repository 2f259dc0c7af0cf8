"""Training: one Volcano Job, or a StatefulSet and a Deployment; a new name when another training must begin, else none."""

from typing import Any

import pytest
import yaml

from chart.api_server import VOLCANO, install
from chart.rendering import CHART, Object, Rendered, Renderer, Values
from chart.role_settings import files


def job(render: Renderer, **values: Any) -> Object:
    return render(**values).one("Job")


def test_pservers_and_the_least_trainers_start_together(render: Renderer) -> None:
    found = job(render, pserver={"replicas": 3}, trainer={"replicas": 5, "minReplicas": 2})

    assert found.spec["minAvailable"] == 5
    assert {name: (task["replicas"], task["minAvailable"]) for name, task in found.tasks.items()} == {
        "pserver": (3, 3),
        "trainer": (5, 2),
    }


def test_every_field_that_volcano_would_fill_is_rendered(render: Renderer) -> None:
    """Its webhook fills them on creation alone; an upgrade that leaves them out would set them to zero, and be refused."""
    found = job(render)

    assert found.spec.keys() >= {"schedulerName", "queue", "minAvailable", "maxRetry", "plugins", "tasks"}
    assert (found.spec["schedulerName"], found.spec["queue"], found.spec["maxRetry"]) == ("volcano", "default", 10000)
    for task in found.tasks.values():
        assert task.keys() >= {"name", "replicas", "minAvailable", "maxRetry", "policies", "template"}
        assert task["maxRetry"] >= 1


def test_a_pod_that_failed_is_started_again_and_the_pservers_end_the_job(render: Renderer) -> None:
    policies = {name: task["policies"] for name, task in job(render).tasks.items()}

    assert policies == {
        "pserver": [
            {"event": "PodFailed", "action": "RestartPod"},
            {"event": "TaskCompleted", "action": "CompleteJob"},
        ],
        "trainer": [{"event": "PodFailed", "action": "RestartPod"}],
    }
    assert "minSuccess" not in job(render).spec
    assert "ttlSecondsAfterFinished" not in job(render).spec
    assert "policies" not in job(render).spec


def test_a_crash_is_mended_in_its_pod(render: Renderer) -> None:
    assert {task["template"]["spec"]["restartPolicy"] for task in job(render).tasks.values()} == {"OnFailure"}


def test_volcano_makes_no_policy_of_its_own(render: Renderer) -> None:
    assert "--disable-network-policy=true" in job(render).spec["plugins"]["svc"]


@pytest.mark.parametrize("scheduler", ["volcano", "none"])
def test_pservers_are_found_below_the_charts_own_service(render: Renderer, scheduler: str) -> None:
    rendered = render(training={"scheduler": scheduler})
    service = rendered.one("Service", component="pserver")
    pod = rendered.pod_of("pserver")

    if scheduler == "volcano":
        assert pod.spec["subdomain"] == service.name == "ctr-pserver"
    else:
        assert rendered.one("StatefulSet", component="pserver").spec["serviceName"] == service.name
    assert service.selector.items() <= pod.labels.items()


def test_without_volcano_pservers_are_a_statefulset_and_trainers_a_deployment(render: Renderer) -> None:
    rendered = render(training={"scheduler": "none"}, pserver={"replicas": 3}, trainer={"replicas": 4})
    pservers = rendered.one("StatefulSet", component="pserver")
    trainers = rendered.one("Deployment", component="trainer")

    assert pservers.name.startswith("ctr-pserver-")
    assert (pservers.replicas, pservers.spec["podManagementPolicy"]) == (3, "Parallel")
    assert (trainers.name, trainers.replicas) == ("ctr-trainer", 4)
    assert rendered.all("Job") == []


def name_of(render: Renderer, scheduler: str, **values: Any) -> str:
    training = values.pop("training", {})
    rendered = render(training={**training, "scheduler": scheduler}, **values)
    if scheduler == "volcano":
        return rendered.one("Job").name
    return rendered.one("StatefulSet", component="pserver").name


ANOTHER = {
    "pservers": {"pserver": {"replicas": 3}},
    "path": {"data": {"path": "/other"}},
    "start": {"data": {"start": "20200401/01"}},
    "end": {"data": {"end": "20200401/05"}},
    "slots": {"data": {"slots": ["0", "1", "2"]}},
    "the trainers' file": {"trainer": {"config": {"batchSize": 64}}},
    "the pservers' file": {"pserver": {"config": {"port": 18800}}},
    "the model": {"model": {"embeddingDim": 5}},
    "the master's address": {"master": {"config": {"port": 9700}}},
    "the store": {"store": {"config": {"url": "hdfs://n:9000"}}, "fileServer": {"enabled": False}},
    "an image": {"trainer": {"image": {"tag": "other"}}},
    "what a pod needs": {"pserver": {"resources": {"memory": "3Gi"}}},
    "where pods may stand": {"trainer": {"nodeSelector": {"disk": "ssd"}}},
    "environment": {"trainer": {"extraEnv": {"A": "b"}}},
    "Volcano's patience": {"training": {"maxRetry": 99}},
    "Volcano's queue": {"training": {"queue": "other"}},
    "their labels": {"pserver": {"podLabels": {"a": "b"}}},
}
THE_SAME: dict[str, Values] = {
    "trainers": {"trainer": {"replicas": 7}},
    "least trainers": {"trainer": {"replicas": 2, "minReplicas": 2}},
    "serving": {"serving": {"replicas": 3, "config": {"maxInstances": 10}}},
    "cube": {"cube": {"replicasPerShard": 2, "config": {"shards": 4}}},
    "the master's rules": {"master": {"config": {"maxFailures": 5}}},
    "what the master needs": {"master": {"resources": {"memory": "2Gi"}}},
    "transfer": {"cubeTransfer": {"config": {"keepVersions": 9}}},
    "metrics": {"metrics": {"serviceMonitor": {"enabled": True}}},
    "policies": {"networkPolicy": {"enabled": False}},
    "budgets": {"serving": {"pdb": {"enabled": False}}},
}


@pytest.mark.parametrize("scheduler", ["volcano", "none"])
@pytest.mark.parametrize("values", ANOTHER.values(), ids=ANOTHER)
def test_values_that_a_running_job_cannot_take_over_make_another_training(
    render: Renderer, values: Values, scheduler: str
) -> None:
    assert name_of(render, scheduler, **values) != name_of(render, scheduler)


@pytest.mark.parametrize("scheduler", ["volcano", "none"])
@pytest.mark.parametrize("values", THE_SAME.values(), ids=THE_SAME)
def test_values_that_do_not_concern_training_leave_its_name_as_it_is(
    render: Renderer, values: Values, scheduler: str
) -> None:
    assert name_of(render, scheduler, **values) == name_of(render, scheduler)


@pytest.mark.parametrize("values", THE_SAME.values(), ids=THE_SAME)
def test_where_the_name_stays_only_what_volcano_can_change_changes(render: Renderer, values: Values) -> None:
    def fixed(found: Object) -> str:
        spec = {key: each for key, each in found.spec.items() if key not in ("minAvailable", "tasks")}
        tasks = [
            {key: each for key, each in task.items() if key not in ("replicas", "minAvailable")}
            for task in found.spec["tasks"]
        ]
        return yaml.safe_dump([spec, tasks])

    assert fixed(job(render, **values)) == fixed(job(render))


def test_a_new_chart_version_leaves_training_alone(tmp_path: Any, render: Renderer) -> None:
    copy = copied(tmp_path)
    about = copy / "Chart.yaml"
    about.write_text(about.read_text().replace("\nversion: ", "\nversion: 9"))
    other = Renderer(copy)
    try:
        assert yaml.safe_dump(other().one("Job").spec) == yaml.safe_dump(render().one("Job").spec)
        assert other().one("Job").name == render().one("Job").name
    finally:
        other.close()


def copied(tmp_path: Any) -> Any:
    import shutil

    return shutil.copytree(CHART, tmp_path / "elastic-ctr")


def test_the_members_and_the_master_have_one_name_of_the_training(render: Renderer) -> None:
    for scheduler in ("volcano", "none"):
        found: dict[str, Any] = files(render(training={"scheduler": scheduler}))
        assert len({found[role].training for role in ("master", "trainer", "pserver")}) == 1


def test_a_training_that_is_off_leaves_the_rest(render: Renderer) -> None:
    rendered = render(training={"enabled": False})

    assert {pod.component for pod in rendered.pods} == {
        "file-server",
        "cube",
        "cube-transfer",
        "serving",
        "scoring",
        "client",
        "check-values",
    }


def test_trainers_yield_to_pservers(render: Renderer) -> None:
    rendered = render(priorityClasses={"enabled": True})
    classes = {each.name: each.raw for each in rendered.all("PriorityClass")}

    assert classes["elastic-ctr.ads.ctr.pserver"]["value"] > classes["elastic-ctr.ads.ctr.trainer"]["value"]
    assert rendered.pod_of("pserver").spec["priorityClassName"] == "elastic-ctr.ads.ctr.pserver"
    assert rendered.pod_of("trainer").spec["priorityClassName"] == "elastic-ctr.ads.ctr.trainer"
    assert all(each.get("globalDefault", False) is False for each in classes.values())


def test_volcano_may_take_a_trainer_and_never_a_pserver(render: Renderer) -> None:
    tasks = job(render, trainer={"podAnnotations": {"team": "ads"}}).tasks

    annotations = {name: task["template"]["metadata"]["annotations"] for name, task in tasks.items()}
    assert annotations == {
        "pserver": {"volcano.sh/preemptable": "false"},
        "trainer": {"volcano.sh/preemptable": "true", "team": "ads"},
    }


def test_priority_classes_are_off_by_default(render: Renderer) -> None:
    assert render().all("PriorityClass") == []
    assert all("priorityClassName" not in pod.spec for pod in render().pods)


def test_a_cluster_with_volcano_takes_the_job() -> None:
    assert install().one("Job").is_volcano


def test_a_cluster_without_volcano_takes_the_other_objects() -> None:
    rendered = install(without=[VOLCANO], training={"scheduler": "none"})

    assert len(rendered.all("StatefulSet", component="pserver")) == 1


def members(rendered: Rendered) -> dict[str, dict[str, Any]]:
    return {name: rendered.pod_of(name).spec for name in ("pserver", "trainer")}


def test_the_members_of_a_training_have_time_to_save_before_they_are_killed(render: Renderer) -> None:
    assert all(spec["terminationGracePeriodSeconds"] == 300 for spec in members(render()).values())


@pytest.mark.parametrize(("trainer", "pserver", "seconds"), [(300, 300, 290), (60, 300, 50), (300, 45, 35), (5, 60, 0)])
def test_the_master_gives_a_replaced_training_the_time_that_its_pods_have(
    render: Renderer, trainer: int, pserver: int, seconds: int
) -> None:
    rendered = render(
        trainer={"terminationGracePeriodSeconds": trainer}, pserver={"terminationGracePeriodSeconds": pserver}
    )

    found: Any = files(rendered)["master"]
    assert found.handover_seconds == seconds
