"""A release of the chart: helm's verbs, and what its roles say of themselves."""

import base64
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from cluster.kube import Kube, Object, eventually, is_going, is_ready, name_of, rolled_out
from elastic_ctr.cube.release import ReleaseDocument

# As the plugin's --chart-path has it, whose fixture lives as long as a module.
CHART = Path(os.environ.get("ATS_CHART_PATH") or Path(__file__).parents[2] / "charts" / "elastic-ctr")
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
Values = dict[str, Any]


class HelmFailed(RuntimeError):
    """What helm said."""


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> Values:
    """As helm merges: maps key by key, all else whole."""
    result = dict(values)
    for key, value in changes.items():
        before = result.get(key)
        result[key] = merged(before, value) if isinstance(before, dict) and isinstance(value, Mapping) else value
    return result


class Release:
    """One release in one namespace."""

    def __init__(self, kube: Kube, name: str, namespace: str, work: Path, *, chart: Path = CHART) -> None:
        self.kube = kube
        self.name = name
        self.namespace = namespace
        self.chart = chart
        self.values: Values = {}
        self._work = work
        self._helm = os.environ.get("HELM", "helm")
        self._forwards: dict[str, tuple[Any, str]] = {}

    # -- helm ----------------------------------------------------------------------------------------------------------

    def helm(self, *command: str, timeout: float = 660) -> str:
        """Raises HelmFailed."""
        done = subprocess.run(
            [self._helm, *command, "--namespace", self.namespace],
            env=self.kube.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        if done.returncode:
            raise HelmFailed(f"{done.stdout}{done.stderr}".strip())
        return done.stdout

    def upgrade(self, values: Mapping[str, Any], *options: str, chart: Path | None = None) -> str:
        """`helm upgrade --install` with exactly these values. Raises HelmFailed."""
        self._work.mkdir(parents=True, exist_ok=True)
        file = self._work / f"{self.namespace}-{self.name}.yaml"
        file.write_text(yaml.safe_dump(dict(values), sort_keys=False))
        told = self.helm("upgrade", "--install", self.name, str(chart or self.chart), "-f", str(file), *options)
        self.values = dict(values)
        return told

    def change(self, changes: Mapping[str, Any], *options: str) -> str:
        return self.upgrade(merged(self.values, changes), *options)

    def status(self) -> Values | None:
        """As helm has it; None where it is not installed."""
        try:
            found: Values = json.loads(self.helm("status", self.name, "-o", "json"))
        except HelmFailed as failed:
            if "not found" in str(failed):
                return None
            raise
        return found

    def uninstall(self) -> None:
        self.close()
        self.helm("uninstall", self.name, "--ignore-not-found", "--timeout", "5m")

    # -- objects -------------------------------------------------------------------------------------------------------

    def pods(self, component: str | None = None) -> list[Object]:
        chosen = {"app.kubernetes.io/instance": self.name}
        if component:
            chosen["app.kubernetes.io/component"] = component
        return self.kube.all("pods", self.namespace, **chosen)

    def pod(self, component: str) -> Object:
        """The one pod of it that is ready. Raises LookupError."""
        ready = [each for each in self.pods(component) if is_ready(each)]
        if not ready:
            raise LookupError(f"no pod of {component} is ready")
        return ready[0]

    def job(self) -> Object | None:
        """The training's Volcano Job; the newest where an old one is going."""
        jobs = self.kube.all("jobs.batch.volcano.sh", self.namespace, **{"app.kubernetes.io/instance": self.name})
        kept = [each for each in jobs if not is_going(each)]
        return max(kept, key=lambda each: each["metadata"]["creationTimestamp"], default=None)

    def workloads(self) -> list[Object]:
        chosen = {"app.kubernetes.io/instance": self.name}
        return [
            each for kind in ("statefulsets", "deployments") for each in self.kube.all(kind, self.namespace, **chosen)
        ]

    def token(self, right: str = "clicks") -> str:
        """With which roles and clients of the release write."""
        secret = self.kube.get("secret", f"{self.name}-auth", self.namespace)
        assert secret is not None
        return base64.b64decode(secret["data"][right]).decode().split()[1]

    def wait_rolled_out(self, seconds: float = 300) -> None:
        """Every StatefulSet and Deployment is what was asked for, and nobody is on the way out."""

        def lacking() -> bool:
            late = [name_of(each) for each in self.workloads() if not rolled_out(each)]
            going = [name_of(each) for each in self.pods() if is_going(each)]
            if late or going:
                raise LookupError(f"not rolled out: {late}; going: {going}")
            return True

        eventually(f"{self.name} is rolled out", lacking, seconds, 1)

    # -- doors ---------------------------------------------------------------------------------------------------------

    def ask(self, component: str, port: int, path: str) -> httpx.Response:
        """A call through a port-forward to the component's ready pod, opened again when the pod has changed."""
        for last in (False, True):
            try:
                return httpx.get(f"http://{self._door(component, port)}{path}", timeout=10, trust_env=False)
            except httpx.TransportError:  # noqa: PERF203 - twice at most
                self._shut(component)
                if last:
                    raise
        raise AssertionError

    def _door(self, component: str, port: int) -> str:
        pod = name_of(self.pod(component))
        found = self._forwards.get(component)
        key = f"{pod}:{port}"
        if found is not None and found[0][0] == key:
            return found[1]
        self._shut(component)
        context = self.kube.forwarded(self.namespace, f"pod/{pod}", port)
        address = context.__enter__()
        self._forwards[component] = ((key, context), address)
        return address

    def _shut(self, component: str) -> None:
        found = self._forwards.pop(component, None)
        if found is not None:
            found[0][1].__exit__(None, None, None)

    def close(self) -> None:
        for component in list(self._forwards):
            self._shut(component)

    def document(self) -> ReleaseDocument:
        """Raises LookupError while there is none."""
        answer = self._quiet("cube-transfer", 8300, "/release")
        return ReleaseDocument.model_validate(answer)

    def training(self) -> Values:
        """The master's status. Raises LookupError."""
        found: Values = self._quiet("master", 8701, "/status")
        return found

    def transfer(self) -> Values:
        found: Values = self._quiet("cube-transfer", 8300, "/status")
        return found

    def _quiet(self, component: str, port: int, path: str) -> Any:
        try:
            answer = self.ask(component, port, path)
        except httpx.TransportError as closed:
            raise LookupError(f"{component}{path}: {closed}") from closed
        if answer.status_code != 200:
            raise LookupError(f"{component}{path}: {answer.status_code} {answer.text:.200}")
        return answer.json()

    # -- what is waited for --------------------------------------------------------------------------------------------

    def wait_live(self, newer_than: int = 0, seconds: float = 300) -> int:
        """Until a version is live that is newer; which."""

        def live() -> int | None:
            found = self.document().live
            return found if found is not None and found > newer_than else None

        return eventually(f"a version after {newer_than} is live in {self.name}", live, seconds)

    def wait_passes(self, count: int, seconds: float = 400) -> Values:
        """Until so many passes are done; the master's status then."""

        def done() -> Values | None:
            status = self.training()
            return status if sum(each["state"] == "done" for each in status["passes"]) >= count else None

        return eventually(f"{count} passes are done", done, seconds, 1)

    def wait_trained(self, hour: str, seconds: float = 400) -> tuple[Values, Values]:
        """Until the pass of an hour is done; the master's status then, and the pass."""

        def done() -> tuple[Values, Values] | None:
            status = self.training()
            found = [each for each in status["passes"] if each["pass"] == hour and each["state"] == "done"]
            return (status, found[0]) if found else None

        return eventually(f"{hour} is trained", done, seconds, 1)

    def wait_under_way(self, hour: str, *states: str, seconds: float = 240) -> None:
        """Until its pass is in one of these states."""

        def under_way() -> bool:
            current = self.training()["current"]
            return current is not None and current["pass"] == hour and current["state"] in states

        eventually(f"{hour} is {' or '.join(states)}", under_way, seconds, 0.2)

    def wait_settled(self, seconds: float = 300) -> ReleaseDocument:
        """Until every wanted version is held, by pods that stay, where its shards owe it, and nothing is under way."""

        def settled() -> ReleaseDocument | None:
            document = self.document()
            return document if document.live is not None and not self._unsettled(document) else None

        return eventually(f"the cube of {self.name} is as asked for", settled, seconds)

    def _unsettled(self, document: ReleaseDocument) -> str | None:
        cube, partitions = self.values["cube"], set(range(self.values["model"]["partitions"]))
        shards, replicas = cube["config"]["shards"], cube["replicasPerShard"]
        if document.candidate is not None or document.placement.shards != shards:
            return "another candidate, or other shards"
        for version in document.wanted:
            holders = document.holders.get(version, {})
            if len(holders) != shards * replicas or any(each.draining for each in holders.values()):
                return f"{len(holders)} holders of {version}"
            for address, holder in holders.items():
                shard = int(address.split("-cube-s", 1)[1].split("-", 1)[0])
                if set(holder.partitions) != {each for each in partitions if each % shards == shard}:
                    return f"{address} has {len(holder.partitions)} partitions of {version}"
        return None


def ledger_adds_up(status: Mapping[str, Any]) -> None:
    """Every record is accounted for, once."""
    ledger = status["ledger"]
    assert ledger["records"] == sum(ledger[name] for name in ("trained", "heldOut", "refused", "parked")), ledger
    assert ledger["refused"] == ledger["parked"] == 0, ledger


@contextmanager
def released(release: Release, values: Mapping[str, Any], *options: str) -> Iterator[Release]:
    """A release that is gone afterwards, with its namespace."""
    release.kube.namespace(release.namespace, RESTRICTED)
    release.upgrade(values, *options)
    try:
        yield release
    finally:
        release.uninstall()
        release.kube.delete("namespace", release.namespace, wait=False)
