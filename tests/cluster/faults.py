"""What is done to pods and nodes. Killing what has pid 1 takes the node's own tools, which kind's nodes have."""

import random
import shutil
import subprocess
import time
from collections.abc import Callable
from typing import Any

from cluster.kube import Kube, Object, eventually, is_ready, name_of
from cluster.release import Release

COMPONENTS = ("cube", "cube-transfer", "file-server", "master", "pserver", "serving", "trainer")


def in_some_order(seed: int) -> list[str]:
    """All components; ELASTIC_CTR_SEED decides in which order."""
    return random.Random(seed).sample(COMPONENTS, len(COMPONENTS))


def is_whole(release: Release, component: str, count: int) -> bool:
    """As many pods as there were, all ready, none on the way out."""
    pods = release.pods(component)
    return len(pods) == count and all(map(is_ready, pods))


def recovered(release: Release, component: str, harm: Callable[[Object], None], *, seed: int) -> float:
    """Harm one of its pods; seconds until the component is whole again."""
    pods = sorted((each for each in release.pods(component) if is_ready(each)), key=name_of)
    victim = random.Random(seed).choice(pods)
    before = identity(victim)
    start = time.monotonic()
    harm(victim)

    def whole() -> bool:
        found = release.pods(component)
        return is_whole(release, component, len(pods)) and before not in [identity(each) for each in found]

    eventually(f"{component} is whole again after {name_of(victim)} was lost", whole, 180)
    return round(time.monotonic() - start, 1)


def identity(pod: Object) -> tuple[str, int]:
    """Of the pod as it runs now: another one after a restart in place, too."""
    counted = sum(each["restartCount"] for each in pod.get("status", {}).get("containerStatuses", []))
    return pod["metadata"]["uid"], counted


def delete(kube: Kube) -> Callable[[Object], None]:
    """As an operator does."""
    return lambda pod: kube.delete("pod", name_of(pod), pod["metadata"]["namespace"], wait=False)


def can_kill(workers: list[str]) -> bool:
    """Whether nodes are containers of this machine."""
    if shutil.which("docker") is None:
        return False
    done = subprocess.run(["docker", "inspect", workers[0]], capture_output=True, check=False)
    return done.returncode == 0


def kill(pod: Object) -> None:
    """Nothing is said, nothing is saved."""
    send_signal(pod, "SIGKILL")


def send_signal(pod: Object, name: str) -> None:
    """To the first process of its first container."""
    status: dict[str, Any] = pod["status"]["containerStatuses"][0]
    container = status["containerID"].split("://", 1)[1]
    node = pod["spec"]["nodeName"]
    command = ["docker", "exec", node, "ctr", "-n", "k8s.io", "tasks", "kill", "-s", name, container]
    subprocess.run(command, check=True, capture_output=True)
