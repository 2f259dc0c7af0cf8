"""Calls of kubectl, with the configuration, credentials and rights of the operator."""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

_ASK_SECONDS = 30
_LISTEN_SECONDS = 20.0
_END_SECONDS = 5
_ENDS = (signal.SIGTERM, signal.SIGHUP)
_KLOG = re.compile(r"[EWIF]\d{4} \d\d:\d\d:\d\d")
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) -> ")


class KubectlFailed(RuntimeError):
    """kubectl is absent, or fails; the text is one sentence with kubectl's message."""


@dataclass(frozen=True)
class Kubectl:
    """The program and the arguments at the beginning of every call."""

    program: tuple[str, ...]
    namespace: str
    context: str | None = None

    @classmethod
    def found(cls, namespace: str, context: str | None) -> "Kubectl":
        """Find $KUBECTL (a file, or words such as `k3s kubectl`), else kubectl on PATH. Raises KubectlFailed."""
        named = os.environ.get("KUBECTL", "").strip() or "kubectl"
        try:
            words = [named] if Path(named).is_file() else shlex.split(named)
        except ValueError as wrong:
            raise KubectlFailed(f"KUBECTL {named!r} cannot be read: {wrong}") from wrong
        program = shutil.which(words[0])
        if program is None:
            raise KubectlFailed(
                f"{words[0]} is not there: put kubectl on PATH, set KUBECTL to where it is, or give addresses instead of "
                "--namespace"
            )
        return cls((program, *words[1:]), namespace, context)

    def command(self, *words: str) -> list[str]:
        context = [] if self.context is None else ["--context", self.context]
        return [*self.program, *context, "--namespace", self.namespace, *words]

    def read(self, *words: str) -> Any:
        """Return the JSON output of `kubectl get …`. Raises KubectlFailed."""
        answer = self._called(*words, "--output", "json")
        try:
            return json.loads(answer)
        except ValueError as strange:
            raise KubectlFailed(f"kubectl {words[0]} {words[1]} does not answer in JSON: {strange}") from strange

    def text(self, *words: str) -> str:
        """Return the text output of kubectl. Raises KubectlFailed."""
        return self._called(*words).decode("utf-8", "replace")

    def create(self, document: dict[str, Any]) -> None:
        """Create an object. Raises KubectlFailed."""
        self._called("create", "--filename", "-", given=json.dumps(document).encode())

    def _called(self, *words: str, given: bytes = b"") -> bytes:
        command = self.command(*words, f"--request-timeout={_ASK_SECONDS}s")
        try:
            done = subprocess.run(command, input=given, capture_output=True, check=False, timeout=2 * _ASK_SECONDS)
        except subprocess.TimeoutExpired as late:
            raise KubectlFailed(f"kubectl {words[0]} {words[1]} does not end; is the cluster there?") from late
        except OSError as failed:
            raise KubectlFailed(f"{self.program[0]} cannot be started: {failed.strerror}") from failed
        if done.returncode != 0:
            raise KubectlFailed(f"kubectl {words[0]} {words[1]}: {_last_words(done.stderr.decode('utf-8', 'replace'))}")
        return done.stdout

    def executed(self, pod: str, container: str, *words: str, given: bytes) -> int:
        """Run a command in a container, with its output to this program's. Return the exit code. Raises KubectlFailed."""
        command = self.command("exec", "--stdin", pod, "--container", container, "--", *words)
        try:
            return subprocess.run(command, input=given, check=False).returncode
        except OSError as failed:
            raise KubectlFailed(f"{self.program[0]} cannot be started: {failed.strerror}") from failed

    def started(self, *words: str, **streams: Any) -> "subprocess.Popen[str]":
        """Start kubectl in its own session, so that `end` also reaches the children of a wrapper. Raises KubectlFailed."""
        try:
            return subprocess.Popen(
                self.command(*words),
                stdin=subprocess.DEVNULL,
                text=True,
                errors="replace",
                start_new_session=True,
                **streams,
            )
        except OSError as failed:
            raise KubectlFailed(f"{self.program[0]} cannot be started: {failed.strerror}") from failed


@contextmanager
def running(kubectl: Kubectl, *words: str, **streams: Any) -> Iterator["subprocess.Popen[str]"]:
    """Run kubectl within the block, and end it after. Raises KubectlFailed."""
    process = kubectl.started(*words, **streams)
    try:
        yield process
    finally:
        end(process)
        if process.stdout is not None:
            process.stdout.close()


class PortForward:
    """One `kubectl port-forward`, from its start until it is closed; `address` is the local address of the pod."""

    def __init__(self, kubectl: Kubectl, pod: str, port: int, seconds: float = _LISTEN_SECONDS) -> None:
        """Start, and return once kubectl listens. Raises KubectlFailed."""
        self._process = kubectl.started(
            "port-forward", f"pod/{pod}", f":{port}", "--address", "127.0.0.1",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        self._said: deque[str] = deque(maxlen=5)
        self._listening: SimpleQueue[int | None] = SimpleQueue()
        self._reader = threading.Thread(target=self._read, name=f"port-forward-{pod}", daemon=True)
        self._reader.start()
        with ExitStack() as stack:
            stack.callback(self.close)
            try:
                local = self._listening.get(timeout=seconds)
            except Empty:
                raise KubectlFailed(f"kubectl port-forward to {pod} does not listen within {seconds:g} s") from None
            if local is None:
                raise KubectlFailed(f"kubectl port-forward to {pod}: {_last_words(''.join(self._said))}")
            stack.pop_all()
        self.address = f"127.0.0.1:{local}"

    @property
    def open(self) -> bool:
        """True while kubectl runs; it ends with its pod."""
        return self._process.poll() is None

    def close(self) -> None:
        end(self._process)
        # A child of a wrapper may keep the pipe open; then the thread ends with this program.
        self._reader.join(_END_SECONDS)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()

    def _read(self) -> None:
        # Read to the end, because kubectl writes a line for each connection, and would block on a full pipe.
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said.append(line)
            if match := _FORWARDING.match(line):
                self._listening.put(int(match[1]))
        self._listening.put(None)


def end(process: "subprocess.Popen[str]") -> None:
    """End a process of `started` and its group, and wait for the end."""
    for signum in (signal.SIGTERM, signal.SIGKILL):
        # After `wait` the kernel may give the pid to another process.
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signum)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_SECONDS)


@contextmanager
def ending_in_order() -> Iterator[None]:
    """Make SIGTERM and SIGHUP run every `finally`, so that no kubectl is left running; exit code 128 + the signal."""

    def told(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 (the signature of a handler)
        raise SystemExit(128 + signum)

    ours = threading.current_thread() is threading.main_thread()
    # Keep a handler that is already set, because its owner ends the program.
    taken = [each for each in _ENDS if ours and signal.getsignal(each) == signal.SIG_DFL]
    for each in taken:
        signal.signal(each, told)
    try:
        yield
    finally:
        for each in taken:
            signal.signal(each, signal.SIG_DFL)


def _last_words(said: str) -> str:
    """Return kubectl's message without the lines of klog, which repeat the error for developers."""
    lines = [line.strip() for line in said.splitlines() if line.strip() and not _KLOG.match(line)]
    return " ".join(lines[-3:])[-500:] or "it ended without a word"
