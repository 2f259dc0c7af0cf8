"""Running images as pods do: any user's rights dropped, a read-only root, and /tmp."""

import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

# What the chart's security contexts come to.
AS_A_POD = [
    "--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
]  # fmt: skip


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


class Image:
    """An image by its name."""

    def __init__(self, docker: str, name: str) -> None:
        self._docker = docker
        self.name = name

    def there(self) -> bool:
        return not subprocess.run(
            [self._docker, "image", "inspect", self.name], capture_output=True, check=False
        ).returncode

    @cached_property
    def _inspected(self) -> dict[str, Any]:
        told = subprocess.run([self._docker, "image", "inspect", self.name], capture_output=True, check=True).stdout
        [inspected] = json.loads(told)
        return dict(inspected)

    @property
    def config(self) -> dict[str, Any]:
        """User, Entrypoint, Env, Labels …"""
        return dict(self._inspected["Config"])

    @property
    def layers(self) -> list[str]:
        """The digests of the layers, the lowest first."""
        return list(self._inspected["RootFS"]["Layers"])

    @property
    def environment(self) -> dict[str, str]:
        return dict(entry.split("=", 1) for entry in self.config["Env"])

    def run(self, *words: str, options: Sequence[str] = (), stdin: str = "") -> Ended:
        """Until it ends by itself."""
        done = subprocess.run(
            [self._docker, "run", "--rm", "--interactive", *AS_A_POD, *options, self.name, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        return Ended(done.returncode, done.stdout, done.stderr)

    def sh(self, script: str) -> Ended:
        return self.run("-c", script, options=["--entrypoint", "sh"])

    def python(self, script: str, *options: str) -> Ended:
        """In the environment of the roles."""
        return self.run("-", options=["--entrypoint", "python", *options], stdin=script)

    def start(
        self, *words: str, mounts: Mapping[Path, str], ports: Sequence[int], options: Sequence[str]
    ) -> "Container":
        command = [self._docker, "run", "--detach", *AS_A_POD, *options]
        for source, target in mounts.items():
            command += ["--volume", f"{source}:{target}:ro"]
        for port in ports:
            command += ["--publish", f"127.0.0.1::{port}"]
        started = time.monotonic()
        done = subprocess.run([*command, self.name, *words], capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr
        return Container(self._docker, done.stdout.strip(), started)


class Container:
    """One that runs. `started`: when, by time.monotonic()."""

    def __init__(self, docker: str, name: str, started: float) -> None:
        self._docker = docker
        self.name = name
        self.started = started

    def _told(self, *words: str) -> str:
        return subprocess.run([self._docker, *words], capture_output=True, text=True, check=True).stdout.strip()

    def address(self, port: int) -> str:
        """Where a published port is reached from here."""
        return self._told("port", self.name, str(port)).splitlines()[0]

    @property
    def ip(self) -> str:
        return self._told("inspect", "--format", "{{.NetworkSettings.IPAddress}}", self.name)

    def log(self) -> str:
        done = subprocess.run([self._docker, "logs", self.name], capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    def exec(self, *words: str) -> Ended:
        done = subprocess.run([self._docker, "exec", self.name, *words], capture_output=True, text=True, check=False)
        return Ended(done.returncode, done.stdout, done.stderr)

    def stop(self) -> int:
        """SIGTERM, and the exit code."""
        self._told("stop", "--time", "30", self.name)
        return int(self._told("inspect", "--format", "{{.State.ExitCode}}", self.name))

    def until(self, what: str, look: Callable[[], T | None], seconds: float = 60) -> T:
        """The first answer that is not None or False; fails with the container's log when it ends or takes too long."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answer = look()
            if answer:
                return answer
            alive = self._told("inspect", "--format", "{{.State.Running}}", self.name) == "true"
            assert alive, f"it ended before {what}:\n{self.log()}"
            time.sleep(0.02)
        raise AssertionError(f"not within {seconds:.0f} s: {what}\n{self.log()}")

    def remove(self) -> None:
        self._told("rm", "--force", "--volumes", self.name)


Start = Callable[..., Container]
