"""A Kubernetes Job of n pods that score. Its template is the chart's suspended CronJob: image, settings, security, resources."""

import json
import secrets
import time
from collections.abc import Callable
from typing import Any

import typer

from elastic_ctr.jobs.scoring.order import Order
from elastic_ctr.operate.cli.cluster import Cluster
from elastic_ctr.operate.cli.kubectl import KubectlFailed
from elastic_ctr.store.versions import layout

COMPONENT = "scoring"
_LOOK_SECONDS = 2.0
# Retries of kubectl; an upgrade of the control plane takes less time.
_AWAY_SECONDS = 120.0
# Errors that the API server has returned and that a retry would not change.
_FINAL = ("(NotFound)", "(Forbidden)", "(Unauthorized)")
# Lines read from the end of a finished pod's log; its report is the last one.
_TAIL = 20


def score_in_cluster(cluster: Cluster, order: Order, pods: int) -> dict[str, Any]:
    """Create a Job, wait for it and return its report, see `Report.document`. The Job outlives this command. Raises KubectlFailed."""
    template = template_of(cluster)
    # A CronJob's name has at most 52 characters, and the host name of a pod, with its number of up to 3 digits, at most 63.
    name = f"{template['metadata']['name']}-{secrets.token_hex(3)}"
    if order.output is None:
        order = order.model_copy(update={"output": layout.scores_folder(name)})
    cluster.kubectl.create(job_of(template, name, order, pods))
    typer.echo(f"Job {name} of {pods} pods; its work stands in {order.output} of the store", err=True)
    try:
        _wait(cluster, name, pods)
    except KeyboardInterrupt:
        raise KubectlFailed(
            f"Job {name} goes on; `kubectl delete job {name}` ends it, and what is done is kept"
        ) from None
    return report_in(_log(cluster, name, "Succeeded"), name)


def template_of(cluster: Cluster) -> dict[str, Any]:
    """Return the CronJob of the release. Raises KubectlFailed."""
    found = cluster.kubectl.read("get", "cronjobs", "--selector", cluster.selector_of(COMPONENT))["items"]
    if not found:
        # For an absent release, this raises the error with the existing releases.
        cluster.pods()
        raise KubectlFailed(
            f"release {cluster.release} has no CronJob of {COMPONENT}; is scoring.enabled false, or the chart older?"
        )
    template: dict[str, Any] = found[0]
    return template


def job_of(template: dict[str, Any], name: str, order: Order, pods: int) -> dict[str, Any]:
    """Return the Job to create. Raises KubectlFailed if the template is not the chart's."""
    try:
        given = json.loads(json.dumps(template["spec"]["jobTemplate"]))
        spec, metadata = given["spec"], given.get("metadata", {})
        [container] = [each for each in spec["template"]["spec"]["containers"] if each["name"] == COMPONENT]
        shared = order.model_copy(update={"pods": pods})
        container["args"] = [COMPONENT, "--order", shared.model_dump_json(by_alias=True, exclude_defaults=True)]
    except (KeyError, TypeError, ValueError) as strange:
        raise KubectlFailed(
            f"CronJob {template['metadata']['name']} is not the one of this chart: {strange!r}"
        ) from strange
    spec |= {"parallelism": pods, "completions": pods, "completionMode": "Indexed"}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {**metadata, "name": name}, "spec": spec}


def _wait(cluster: Cluster, name: str, pods: int) -> None:
    """Wait until the Job is complete. Raises KubectlFailed with the log of a pod if the Job fails."""
    known = -1
    while True:
        status = _patiently(name, lambda: cluster.kubectl.read("get", "job", name)).get("status", {})
        conditions = {each["type"]: each for each in status.get("conditions", []) if each.get("status") == "True"}
        if "Complete" in conditions:
            return
        if "Failed" in conditions:
            why = conditions["Failed"].get("message", "")
            try:
                said = f"a pod of it said:\n{_log(cluster, name, 'Failed').strip()}"
            except KubectlFailed as lost:
                said = str(lost)
            raise KubectlFailed(f"Job {name} has failed ({why}); {said}")
        if (done := int(status.get("succeeded", 0))) != known:
            known = done
            typer.echo(f"{done} of {pods} pods have ended, {status.get('active', 0)} run", err=True)
        time.sleep(_LOOK_SECONDS)


def _patiently(name: str, ask: Callable[[], Any]) -> Any:
    """Retry a kubectl call while the API server is down. Raises KubectlFailed, whose text includes that the Job continues."""
    began, said = time.monotonic(), False
    while True:
        try:
            return ask()
        except KubectlFailed as failed:  # noqa: PERF203 (trying again is what it is for)
            if any(each in str(failed) for each in _FINAL) or time.monotonic() - began > _AWAY_SECONDS:
                raise KubectlFailed(
                    f"Job {name} cannot be watched any more, and goes on where it is there: {failed}; `kubectl logs job/{name}` "
                    "ends with its report"
                ) from failed
            if not said:
                typer.echo(f"asking again for {_AWAY_SECONDS:g} s: {failed}", err=True)
            said = True
            time.sleep(_LOOK_SECONDS)


def _log(cluster: Cluster, name: str, phase: str) -> str:
    """Return the end of the log of one of its pods in this phase, because a Job may also have failed pods. Raises KubectlFailed."""
    pods = _patiently(name, lambda: cluster.kubectl.read("get", "pods", "--selector", f"job-name={name}"))["items"]
    of_phase = [each["metadata"]["name"] for each in pods if each.get("status", {}).get("phase") == phase]
    if not of_phase:
        raise KubectlFailed(f"Job {name} has no pod that is {phase} any more, so its words are lost")
    words = "logs", of_phase[-1], "--container", COMPONENT, f"--tail={_TAIL}"
    return str(_patiently(name, lambda: cluster.kubectl.text(*words)))


def report_in(log: str, name: str) -> dict[str, Any]:
    """Return the report in a log. Raises KubectlFailed."""
    for line in reversed(log.splitlines()):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and {"version", "splits", "total", "maxRefusedShare"} <= found.keys():
            return found
    raise KubectlFailed(f"Job {name} is complete, and the log of its pod holds no report: `kubectl logs job/{name}`")
