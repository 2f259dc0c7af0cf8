"""The target of a command: a release in a cluster (found by labels), a run on this machine (by its folder), or addresses."""

import base64
import binascii
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elastic_ctr.config.load import parse_yaml, settings
from elastic_ctr.config.section import Section
from elastic_ctr.config.serving_settings import ServingConfig
from elastic_ctr.formats.inputs import USUAL_WORDS, MissingWords
from elastic_ctr.operate.cli.entrypoint import reason_of, refuse
from elastic_ctr.operate.cli.kubectl import Kubectl, KubectlFailed, PortForward, ending_in_order
from elastic_ctr.operate.cli.shared_options import (
    MASTER_STATUS,
    PREDICTIONS,
    RELEASE,
    SERVING_ADMIN,
    TRANSFER,
    Endpoint,
    Where,
)
from elastic_ctr.operate.local.run_folder import DEFAULT_FOLDER, RunFolder
from elastic_ctr.runtime.auth import Right, TokenFile, Tokens, tokens_in

_LABEL = "app.kubernetes.io"
# Not the name, which `nameOverride` sets.
_OURS = f"{_LABEL}/part-of=elastic-ctr"


@dataclass(frozen=True)
class Pod:
    """A pod of `kubectl get pods`; `state` is its phase, with the reason if it does not run."""

    name: str
    component: str
    phase: str
    state: str
    ready: bool
    going: bool
    restarts: int
    containers: tuple[dict[str, Any], ...]
    volumes: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, document: dict[str, Any]) -> "Pod":
        metadata, spec, status = document["metadata"], document["spec"], document.get("status", {})
        conditions = {each["type"]: each for each in status.get("conditions", [])}
        statuses = status.get("containerStatuses", [])
        phase = str(status.get("phase", "Unknown"))
        waiting = (each.get("state", {}).get("waiting", {}).get("reason") for each in statuses)
        reason = next((each for each in waiting if each), None)
        unscheduled = conditions.get("PodScheduled", {})
        if reason is None and unscheduled.get("status") == "False":
            reason = unscheduled.get("message") or unscheduled.get("reason")
        return cls(
            metadata["name"],
            metadata.get("labels", {}).get(f"{_LABEL}/component", ""),
            phase,
            phase if reason is None else f"{phase}: {reason}",
            conditions.get("Ready", {}).get("status") == "True",
            "deletionTimestamp" in metadata,
            sum(each.get("restartCount", 0) for each in statuses),
            tuple(spec["containers"]),
            tuple(spec.get("volumes", [])),
        )

    def as_dict(self) -> dict[str, object]:
        return {
            "pod": self.name,
            "component": self.component,
            "state": self.state,
            "ready": self.ready,
            "terminating": self.going,
            "restarts": self.restarts,
        }

    def port(self, endpoint: Endpoint) -> int:
        ports = (each for container in self.containers for each in container.get("ports", []))
        return next(
            (int(each["containerPort"]) for each in ports if each.get("name") == endpoint.port_name), endpoint.port
        )


class _OfData(Section):
    missing: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Cluster:
    """One release. All methods raise KubectlFailed."""

    kubectl: Kubectl
    release: str

    def selector_of(self, component: str | None) -> str:
        """Return the label selector of all its pods, or of a component's."""
        release = f"{_OURS},{_LABEL}/instance={self.release}"
        return release if component is None else f"{release},{_LABEL}/component={component}"

    def pods(self, component: str | None = None) -> list[Pod]:
        """Return the pods sorted by name. An absent release raises KubectlFailed, with the names of the existing releases."""
        found = self.kubectl.read("get", "pods", "--selector", self.selector_of(None))["items"]
        pods = sorted((Pod.read(each) for each in found), key=lambda each: each.name)
        if not pods:
            found = self.kubectl.read("get", "pods", "--selector", _OURS)["items"]
            names = {each["metadata"].get("labels", {}).get(f"{_LABEL}/instance", "") for each in found} - {""}
            others = f"there are {', '.join(sorted(names))}: say --release" if names else "is it another namespace?"
            raise KubectlFailed(f"namespace {self.kubectl.namespace} has no pods of release {self.release}; {others}")
        return [each for each in pods if component in (None, each.component)]

    def pod(self, component: str) -> Pod:
        """Return a running pod of a component, a ready one if there is one."""
        found = self.pods(component)
        running = [each for each in found if each.phase == "Running" and not each.going]
        if not running:
            states = "; ".join(f"{each.name} is {each.state}" for each in found) or "there is none"
            raise KubectlFailed(f"no pod of {component} runs in namespace {self.kubectl.namespace}: {states}")
        return max(running, key=lambda each: each.ready)

    def has(self, component: str) -> bool:
        """True if the release has the component: a component that is switched off has no Service."""
        return bool(self.kubectl.read("get", "services", "--selector", self.selector_of(component))["items"])

    def missing_words(self) -> MissingWords:
        """Return the words for missing numbers by the release's `data.missing`, which its role files have in ConfigMaps.

        No other setting is checked, because a role file of a later release has more of them. Raises ConfigRefused, too.
        """
        for each in self.kubectl.read("get", "configmaps", "--selector", self.selector_of(None))["items"]:
            for key, text in (each.get("data") or {}).items():
                name = f"{key} of ConfigMap {each['metadata']['name']}"
                given = parse_yaml(text, name) if key.endswith(".config.yaml") else {}
                if isinstance(data := given.get("data"), dict):
                    return MissingWords.of(settings(_OfData, {"missing": data.get("missing")}, name).missing)
        return USUAL_WORDS

    def tokens(self) -> Tokens:
        """Return the operators' tokens, from the Secret that cube-transfer mounts, whatever its name is."""
        name, key = _secret_of(self.pod(TRANSFER.component))
        try:
            data = self.kubectl.read("get", "secret", name)["data"]
            return Tokens(tokens_in(base64.b64decode(data[key], validate=True), f"key {key}"))
        except KubectlFailed as failed:
            raise KubectlFailed(f"the token is in Secret {name} ({failed}); say --token-file FILE instead") from failed
        except (KeyError, TypeError, ValueError, binascii.Error) as strange:
            raise KubectlFailed(f"Secret {name} holds no token under {key}; say --token-file FILE") from strange


def _secret_of(pod: Pod) -> tuple[str, str]:
    """Return name and key of the Secret with the operators' tokens."""
    for volume in pod.volumes:
        secret = volume.get("secret", {})
        for item in secret.get("items", []):
            if volume["name"] == "auth" and item["path"] == Right.OPERATE.value:
                return secret["secretName"], item["key"]
    raise KubectlFailed(
        f"pod {pod.name} has no tokens of operators mounted; is it of this chart's version? Say --token-file FILE"
    )


class PortForwards:
    """Port-forwards to a release, opened on first use and reopened after the loss of their pod."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._open: dict[Endpoint, PortForward] = {}

    def address(self, endpoint: Endpoint) -> str:
        """Return the local address of an endpoint. Raises KubectlFailed."""
        forward = self._open.get(endpoint)
        if forward is None or not forward.open:
            self.forget(endpoint)
            pod = self.cluster.pod(endpoint.component)
            forward = self._open[endpoint] = PortForward(self.cluster.kubectl, pod.name, pod.port(endpoint))
        return forward.address

    def forget(self, endpoint: Endpoint) -> None:
        """Close the port-forward of an endpoint that did not answer; the next call opens a new one."""
        if (forward := self._open.pop(endpoint, None)) is not None:
            forward.close()

    def close(self) -> None:
        for endpoint in list(self._open):
            self.forget(endpoint)


@contextmanager
def port_forwards(cluster: Cluster) -> Iterator[PortForwards]:
    forwards = PortForwards(cluster)
    with ending_in_order():
        try:
            yield forwards
        finally:
            forwards.close()


@dataclass(frozen=True)
class Target:
    """The target of a command: a release, or a run on this machine, or neither, which means given addresses and default ports."""

    cluster: Cluster | None
    run: RunFolder | None

    @contextmanager
    def reached(self, endpoint: Endpoint, address: str | None) -> Iterator[str]:
        """Yield the given address, or that of the endpoint in the release or run. Raises KubectlFailed."""
        if self.cluster is None:
            yield address or self.address(endpoint)
            return
        with port_forwards(self.cluster) as forwards:
            yield forwards.address(endpoint)

    def address(self, endpoint: Endpoint) -> str:
        """Return the address of an endpoint on this machine. Ends the command with a sentence if the run has ended."""
        info = None if self.run is None else self.run.read()
        if self.run is None or info is None:
            return endpoint.default
        if self.run.runner() is None:
            refuse(self.run.absence())
        return {
            MASTER_STATUS: info.master,
            TRANSFER: info.transfer,
            SERVING_ADMIN: info.serving_admin,
            PREDICTIONS: info.predictions[0],
        }[endpoint]

    def model(self, given: str | None) -> str:
        """Return the name of the model in the paths of serving."""
        info = None if self.run is None else self.run.read()
        return given or (ServingConfig().model_name if info is None else info.model)

    def tokens(self, file: Path | None) -> Tokens | None:
        """Return an operator's tokens: of the given file, else of the release or run. Raises KubectlFailed, or ends the command."""
        if file is None and self.cluster is not None:
            return self.cluster.tokens()
        if file is None and self.run is not None and self.run.token_file(Right.OPERATE).exists():
            file = self.run.token_file(Right.OPERATE)
        return None if file is None else tokens_of(file)


def tokens_of(file: Path) -> Tokens:
    """Read a token file. Ends the command with a sentence for a file without tokens."""
    try:
        return TokenFile(file)
    except (OSError, ValueError) as wrong:
        refuse(f"the token cannot be read: {reason_of(wrong)}")


def target_of(where: Where, addresses: Mapping[str, str | None]) -> Target:
    """Return the target of a command, with the given addresses by option. Ends the command if options exclude each other."""
    given = [option for option, value in addresses.items() if value is not None]
    if where.namespace is None:
        if where.release is not None or where.context is not None:
            refuse("--release and --context say which release of a --namespace is meant; say that as well")
        run = RunFolder(where.folder or DEFAULT_FOLDER)
        if run.read() is None:
            if where.folder is not None:
                refuse(run.absence())
            return Target(None, None)
        return Target(None, run)
    if where.folder is not None:
        given.append("--dir")
    if given:
        refuse(f"say either --namespace, or {' and '.join(given)}: not both")
    try:
        return Target(Cluster(Kubectl.found(where.namespace, where.context), where.release or RELEASE), None)
    except KubectlFailed as failed:
        refuse(str(failed))
