"""A kubectl that says what a test has written down, to see how it is called and what is made of its answers.

It reads `world.json` beside itself: `pods`, `services` (the components that have one), `secrets` by name, `forward`
(pod:port -> local port, or text to fail with), `logs` (lines), `cronjobs`, `configmaps`, `job` (its statuses in turn, or text to fail with), `job_pods`, `exec` (the exit code of a command in a pod), `fail` (text to fail
everything with). Calls and pids go to `calls.jsonl`, what is created to `created.json`.
"""

import json
import os
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

_PROGRAM = """
import json, os, sys, time
from pathlib import Path

here = Path(__file__).parent
world = json.loads((here / "world.json").read_text())
words = sys.argv[1:]
with (here / "calls.jsonl").open("a") as calls:
    calls.write(json.dumps({"pid": os.getpid(), "words": words}) + "\\n")

def fail(said):
    sys.stderr.write(said + "\\n")
    raise SystemExit(1)

def value(option):
    return words[words.index(option) + 1]

if world.get("fail"):
    fail(world["fail"])
if "port-forward" in words:
    pod = words[words.index("port-forward") + 1].removeprefix("pod/")
    port = words[words.index("port-forward") + 2].removeprefix(":")
    local = world["forward"].get(f"{pod}:{port}", f"error: nobody forwards {pod}:{port}")
    if isinstance(local, str):
        if local:
            fail(local)
    else:
        print(f"Forwarding from 127.0.0.1:{local} -> {port}", flush=True)
    while True:
        time.sleep(60)
elif "get" in words and "pods" in words and value("--selector").startswith("job-name="):
    print(json.dumps({"items": world["job_pods"]}))
elif "get" in words and "pods" in words:
    asked = dict(each.split("=", 1) for each in value("--selector").split(","))
    labels = lambda each: each["metadata"]["labels"].items()
    found = [each for each in world["pods"] if asked.items() <= labels(each)]
    print(json.dumps({"items": found}))
elif "get" in words and "services" in words:
    component = value("--selector").rpartition("component=")[2]
    print(json.dumps({"items": [each for each in world["services"] if each == component]}))
elif "get" in words and "secret" in words:
    name = value("secret")
    if name not in world["secrets"]:
        fail(f'Error from server (Forbidden): secrets "{name}" is forbidden: User "you" cannot get resource "secrets"')
    print(json.dumps({"data": world["secrets"][name]}))
elif "get" in words and "configmaps" in words:
    print(json.dumps({"items": world["configmaps"]}))
elif "get" in words and "cronjobs" in words:
    print(json.dumps({"items": world["cronjobs"]}))
elif "exec" in words:
    (here / "created.json").write_text(sys.stdin.read())
    raise SystemExit(world["exec"])
elif "create" in words:
    (here / "created.json").write_text(sys.stdin.read())
elif "get" in words and "job" in words:
    # One status after the other, the last one again and again.
    seen = here / "looks"
    looks = int(seen.read_text()) if seen.exists() else 0
    seen.write_text(str(looks + 1))
    status = world["job"][min(looks, len(world["job"]) - 1)]
    if isinstance(status, str):
        fail(status)
    print(json.dumps({"status": status}))
elif "logs" in words:
    for line in world["logs"]:
        print(line, flush=True)
    while "--follow" in words:
        time.sleep(60)
else:
    fail(f"unknown: {words}")
"""


SERVICES = ("master", "cube-transfer", "cube", "serving")


class FakeKubectl:
    """The program, what it says, and how it was called."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "kubectl"
        self.path.write_text(f"#!{sys.executable} -SE\n{_PROGRAM}")
        self.path.chmod(self.path.stat().st_mode | stat.S_IXUSR)
        self.world: dict[str, Any] = {
            "pods": release(),
            "services": [*SERVICES],
            "secrets": {},
            "forward": {},
            "logs": [],
            "cronjobs": [],
            "configmaps": [],
            "job": [],
            "job_pods": [],
        }
        self.say()

    def say(self, **changes: Any) -> None:
        self.world.update(changes)
        temporary = self.path.with_name("world.json.new")
        temporary.write_text(json.dumps(self.world))
        temporary.replace(self.path.with_name("world.json"))

    @property
    def created(self) -> Any:
        """What was created last, or given to a command in a pod."""
        return json.loads(self.path.with_name("created.json").read_text())

    @property
    def calls(self) -> list[list[str]]:
        return [each["words"] for each in self._recorded()]

    def running(self) -> list[int]:
        """Pids of calls that have not ended."""
        return [each["pid"] for each in self._recorded() if _runs(each["pid"])]

    def _recorded(self) -> list[dict[str, Any]]:
        recorded = self.path.with_name("calls.jsonl")
        return [json.loads(line) for line in recorded.read_text().splitlines()] if recorded.exists() else []


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def environment(kubectl: FakeKubectl) -> dict[str, str]:
    """For a command started as a process: the fake comes first on PATH."""
    return {**os.environ, "PATH": f"{kubectl.path.parent}:{os.environ['PATH']}"}


def pod(
    name: str, component: str, *, ports: Mapping[str, int] | None = None, release: str = "ctr", **changes: Any
) -> dict[str, Any]:
    """As `kubectl get pods --output json` shows one that is ready; `changes` are laid over its status."""
    labels = {"name": "ads", "part-of": "elastic-ctr", "instance": release, "component": component}
    container = {
        "name": component,
        "ports": [{"name": each, "containerPort": number} for each, number in (ports or {}).items()],
    }
    items = [{"key": right, "path": right} for right in ("internal", "operate")]
    return {
        "metadata": {"name": name, "labels": {f"app.kubernetes.io/{key}": value for key, value in labels.items()}},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "auth", "secret": {"secretName": f"{release}-auth", "items": items}}],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"restartCount": 0, "state": {"running": {}}}],
            **changes,
        },
    }


def release() -> list[dict[str, Any]]:
    """The pods of a small release."""
    return [
        pod("ctr-master-0", "master", ports={"control": 8700, "status": 8701}),
        pod("ctr-cube-transfer-0", "cube-transfer", ports={"release": 8300}),
        pod("ctr-cube-s0-0", "cube"),
        pod("ctr-serving-7c4d-x1", "serving", ports={"predict": 8400, "admin": 8401}),
    ]
