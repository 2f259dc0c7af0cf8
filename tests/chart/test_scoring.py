"""The template of Jobs that score, and what the commands make of it."""

from typing import Any

import pytest

from chart.rendering import Object, Renderer, merged
from chart.role_settings import files
from chart.schemas import VERSIONS, wrong_for_kubernetes
from elastic_ctr.config.role_files import ScoringFile
from elastic_ctr.jobs.scoring.order import Order
from elastic_ctr.operate.cli.kubernetes_job import job_of

ORDER = Order(deed="evaluate", output="scores/x", first="20200401/00", last="20200401/05")


def template(render: Renderer, **values: Any) -> Object:
    return render(**values).one("CronJob", component="scoring")


def test_the_template_never_runs_by_itself(render: Renderer) -> None:
    assert template(render).spec["suspend"] is True


@pytest.mark.parametrize("version", VERSIONS)
def test_every_kubernetes_takes_the_job_of_the_commands(render: Renderer, version: str) -> None:
    job = job_of(template(render).raw, "ctr-scoring-0011aabb", ORDER, 3)

    assert not wrong_for_kubernetes(merged(job, {"metadata": {"namespace": "ads"}}), version)
    assert (job["kind"], job["metadata"]["name"]) == ("Job", "ctr-scoring-0011aabb")
    spec = job["spec"]
    assert (spec["parallelism"], spec["completions"], spec["completionMode"]) == (3, 3, "Indexed")
    assert job["metadata"]["labels"]["app.kubernetes.io/component"] == "scoring"


def test_the_job_is_the_template_but_for_its_order_and_its_pods(render: Renderer) -> None:
    made = template(render)
    before = made.spec["jobTemplate"]["spec"]

    job = job_of(made.raw, "x", ORDER, 2)

    [container] = job["spec"]["template"]["spec"]["containers"]
    assert container["args"][:2] == ["scoring", "--order"]
    assert Order.model_validate_json(container["args"][2]) == ORDER.model_copy(update={"pods": 2})
    [own] = before["template"]["spec"]["containers"]
    assert {key: each for key, each in container.items() if key != "args"} == {
        k: v for k, v in own.items() if k != "args"
    }
    assert own["args"] == ["scoring"], "the template itself is left alone"
    assert job["spec"]["podFailurePolicy"] == before["podFailurePolicy"]


def test_pods_score_with_the_data_and_the_store_of_the_release(render: Renderer) -> None:
    rendered = render(
        data={"taskBytes": 1000},
        scoring={"resources": {"cpu": "2500m", "memory": "4Gi"}},
        cubeTransfer={"config": {"port": 9300}},
    )

    found = files(rendered)["scoring"]

    assert isinstance(found, ScoringFile)
    assert found.data.task_bytes == 1000
    assert (found.scoring.processes, found.transfer_address) == (3, "ctr-cube-transfer:9300")
    assert found.store.url == "http://ctr-file-server:8080"


def test_a_wrong_order_or_a_drained_node_costs_no_retries(render: Renderer) -> None:
    wrong, drained = template(render).spec["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]

    assert (wrong["action"], wrong["onExitCodes"]["values"]) == ("FailJob", [2])
    assert (drained["action"], drained["onPodConditions"]) == (
        "Ignore",
        [{"type": "DisruptionTarget", "status": "True"}],
    )
    assert template(render).pod.spec["restartPolicy"] == "Never"


def test_without_scoring_there_is_no_template(render: Renderer) -> None:
    rendered = render(scoring={"enabled": False})

    assert [each.name for each in rendered.objects if each.component == "scoring"] == []
