"""A cluster as the tests see it: objects by pykube, what pykube cannot do (exec, logs, apply) by kubectl."""

import contextlib
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

Object = dict[str, Any]
T = TypeVar("T")

WAIT = 240.0


class NotInTime(AssertionError):
    """Something did not come about: what, and what was seen last."""


def eventually(what: str, look: Callable[[], T | bool | None], seconds: float = WAIT, pause: float = 0.5) -> T:
    """The first answer that is true. Raises NotInTime, whose sentence says what was last seen."""
    deadline = time.monotonic() + seconds
    last: object = None
    while time.monotonic() < deadline:
        try:
            last = look()
            if last:
                return last  # type: ignore[return-value]
        except (KubectlFailed, LookupError, OSError) as failed:
            last = failed
        time.sleep(pause)
    raise NotInTime(f"not within {seconds:.0f} s: {what}; last seen: {last!r:.600}")


class KubectlFailed(RuntimeError):
    """A command that ended badly: its own words."""


class Kube:
    """One cluster, by its kubeconfig."""

    def __init__(self, kubeconfig: str) -> None:
        # --kubeconfig of pytest reaches no child by itself.
        self.env = {**os.environ, "KUBECONFIG": kubeconfig}

    # -- commands ----------------------------------------------------------------------------------------------------

    def run(self, *command: str, stdin: bytes | None = None, timeout: float = 120) -> str:
        """kubectl; its output. Raises KubectlFailed."""
        try:
            done = subprocess.run(
                ["kubectl", *command], input=stdin, env=self.env, capture_output=True, timeout=timeout, check=False
            )
        except subprocess.TimeoutExpired as late:
            raise KubectlFailed(f"kubectl {' '.join(command)} took more than {timeout:.0f} s") from late
        if done.returncode:
            raise KubectlFailed(
                f"kubectl {' '.join(command[:6])}… ended with {done.returncode}: {done.stderr.decode().strip()[-1500:]}"
            )
        return done.stdout.decode(errors="replace")

    def apply(self, *objects: Object) -> None:
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self.run("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=json.dumps(listed).encode())

    def exec(
        self, namespace: str, pod: str, container: str, *command: str, stdin: bytes | None = None, timeout: float = 120
    ) -> str:
        interactive = ("-i",) if stdin is not None else ()
        return self.run(
            "exec", *interactive, "-n", namespace, pod, "-c", container, "--", *command, stdin=stdin, timeout=timeout
        )

    def logs(self, namespace: str, pod: str, *options: str) -> str:
        return self.run("logs", "-n", namespace, pod, *options)

    # -- objects -----------------------------------------------------------------------------------------------------

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """None when there is none."""
        scope = ("-n", namespace) if namespace else ()
        text = self.run("get", kind, name, *scope, "-o", "json", "--ignore-not-found")
        found: Object | None = json.loads(text) if text.strip() else None
        return found

    def all(self, kind: str, namespace: str | None = None, **labels: str) -> list[Object]:
        """Of one namespace, of the cluster, or of all namespaces ("*")."""
        scope = ("-A",) if namespace == "*" else ("-n", namespace) if namespace else ()
        chosen = ",".join(f"{key}={value}" for key, value in labels.items())
        selector = ("-l", chosen) if chosen else ()
        items: list[Object] = json.loads(self.run("get", kind, *scope, *selector, "-o", "json"))["items"]
        return items

    def delete(self, kind: str, name: str, namespace: str | None = None, *, wait: bool = True, grace: int = -1) -> None:
        scope = ("-n", namespace) if namespace else ()
        period = (f"--grace-period={grace}",) if grace >= 0 else ()
        force = ("--force",) if grace == 0 else ()
        self.run(
            "delete",
            kind,
            name,
            *scope,
            *period,
            *force,
            "--ignore-not-found",
            f"--wait={str(wait).lower()}",
            timeout=300,
        )

    def namespace(self, name: str, labels: Mapping[str, str] | None = None) -> None:
        """Make it, or take it as it is."""
        # One that is going must be gone first.
        eventually(f"namespace {name} is not going", lambda: not self._going(name), 180)
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": dict(labels or {})}})

    def _going(self, namespace: str) -> bool:
        found = self.get("namespace", namespace)
        return found is not None and found["status"].get("phase") == "Terminating"

    # -- doors -------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def forwarded(self, namespace: str, target: str, port: int) -> Iterator[str]:
        """`127.0.0.1:<free port>`, which leads to the port of a pod or `svc/<name>`."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            local = free.getsockname()[1]
        command = ["kubectl", "port-forward", "-n", namespace, target, f"{local}:{port}", "--address", "127.0.0.1"]
        process = subprocess.Popen(command, env=self.env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        try:

            def open_() -> bool:
                if process.poll() is not None:
                    raise NotInTime(f"{' '.join(command)} ended: {process.stderr.read().decode()}")  # type: ignore[union-attr]
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", local), 1):
                    return True
                return False

            eventually(f"{target}:{port} is forwarded", open_, 30, 0.05)
            yield f"127.0.0.1:{local}"
        finally:
            process.terminate()
            process.communicate()

    # -- evidence ----------------------------------------------------------------------------------------------------

    def dump(self, namespace: str, folder: Path) -> None:
        """Pods, events, objects and every container's logs, also of the one before. Never raises."""
        folder.mkdir(parents=True, exist_ok=True)

        def keep(name: str, *command: str) -> None:
            try:
                text = self.run(*command, timeout=30)
            except (KubectlFailed, OSError) as failed:
                text = str(failed)
            (folder / name).write_text(text)

        keep("pods.txt", "get", "pods", "-n", namespace, "-o", "wide")
        keep("pods.yaml", "get", "pods", "-n", namespace, "-o", "yaml")
        keep("events.txt", "get", "events", "-n", namespace, "--sort-by=.lastTimestamp")
        keep(
            "objects.yaml",
            "get",
            "all,pvc,pdb,hpa,networkpolicy,jobs.batch.volcano.sh,podgroups",
            "-n",
            namespace,
            "-o",
            "yaml",
        )
        try:
            pods = self.all("pods", namespace)
        except (KubectlFailed, OSError):
            return
        for pod in pods:
            name = pod["metadata"]["name"]
            for status in pod.get("status", {}).get("containerStatuses", []):
                container = status["name"]
                keep(f"{name}.{container}.log", "logs", "-n", namespace, name, "-c", container, "--tail=3000")
                if status.get("restartCount"):
                    keep(f"{name}.{container}.before.log", "logs", "-n", namespace, name, "-c", container, "-p")


# -- rules about objects ------------------------------------------------------------------------------------------------


def name_of(each: Object) -> str:
    name: str = each["metadata"]["name"]
    return name


def is_ready(pod: Object) -> bool:
    """Running, all containers ready, not on its way out."""
    conditions = {each["type"]: each["status"] for each in pod.get("status", {}).get("conditions", [])}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def is_going(pod: Object) -> bool:
    return "deletionTimestamp" in pod["metadata"]


def restarts(pod: Object) -> int:
    return sum(each["restartCount"] for each in pod.get("status", {}).get("containerStatuses", []))


def rolled_out(each: Object) -> bool:
    """Of a StatefulSet or Deployment: the pods are those of the newest template, all there and ready.

    The plugin's own wait for StatefulSets looks at readyReplicas alone, and so takes the old pods for the new ones.
    """
    status, wanted = each.get("status", {}), each["spec"].get("replicas", 1)
    counts = [status.get(key, 0) for key in ("replicas", "updatedReplicas", "readyReplicas")]
    return status.get("observedGeneration", 0) >= each["metadata"]["generation"] and counts == [wanted] * 3


def job_has(job: Object, condition: str) -> bool:
    """The plugin's own wait looks at the first condition alone, which is never Complete."""
    return any(
        each["type"] == condition and each["status"] == "True" for each in job.get("status", {}).get("conditions", [])
    )
