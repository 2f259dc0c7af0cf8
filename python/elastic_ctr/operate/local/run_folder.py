"""The folder of a run, for other processes: its runner, addresses, problems, and the reason of its end."""

import errno
import json
import os
import pwd
import secrets
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import psutil

from elastic_ctr.runtime.auth import Right, TokenFile
from elastic_ctr.runtime.lock import StateLock
from elastic_ctr.store.backends.temporary import appearing

DEFAULT_FOLDER = Path("elastic-ctr-local")
TOKENS = "tokens"
# Names below the folder to which a run and its roles write.
_OWN = ("config", "logs", "state", "scratch", "store", TOKENS, "run.json")
_OTHERS = 0o077
_SHOWN_LINES = 3


@dataclass(frozen=True)
class RunInfo:
    """Written by the runner for commands: HOST:PORT of each role, and the problems of processes and training."""

    master: str
    transfer: str
    serving_admin: str
    predictions: list[str]
    model: str
    problems: list[str] = field(default_factory=list)
    ended_at: float | None = None
    ended: str = ""


class RunFolder:
    """One folder, by its absolute path."""

    def __init__(self, folder: Path) -> None:
        self.path = folder.resolve()
        self.tokens = self.path / TOKENS
        self.logs = self.path / "logs"
        # The output of a background runner.
        self.runner_log = self.logs / "local.log"
        self._file = self.path / "run.json"

    def token_file(self, right: Right) -> Path:
        """Return the path of a token file, which may not exist yet."""
        return self.tokens / right.value

    @contextmanager
    def private(self) -> Iterator[None]:
        """Create the folder, and give files of this process and its children within the block to this user only. Raises OSError."""
        before = os.umask(_OTHERS)
        try:
            self.create()
            yield
        finally:
            os.umask(before)

    def create(self) -> None:
        """Raises OSError."""
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(self.path))
        for each in (self.path, self.logs):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)

    def close_to_others(self) -> None:
        """Make clicks, logs and tokens of earlier runs unreadable for other users of the machine. Raises OSError."""
        for name in ("", *_OWN):
            top = self.path / name
            for each in (top, *(top.rglob("*") if name else ())):
                _close_to_others(each)

    def write_tokens(self) -> None:
        """Write a token for each right that has no token file. Raises OSError, ValueError for a file without tokens."""
        self.tokens.mkdir(mode=0o700, parents=True, exist_ok=True)
        for right in Right:
            file = self.token_file(right)
            if not file.exists():
                with appearing(file) as stream:
                    os.fchmod(stream.fileno(), 0o600)
                    stream.write(f"local {secrets.token_urlsafe(32)}\n".encode())
            TokenFile(file)
        # Delete the token of an earlier release, which no role accepts any more.
        (self.path / "token").unlink(missing_ok=True)

    def read(self) -> RunInfo | None:
        """Return the run's information; None if no run was ever started."""
        try:
            return RunInfo(**json.loads(self._file.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, info: RunInfo) -> None:
        """Raises OSError."""
        write_json(self._file, asdict(info))

    def runner(self) -> int | None:
        """Return the id of the process that runs the supervisor, or None."""
        return StateLock(self.path / "state").owner()

    def stranger(self) -> str | None:
        """Return the other user that owns the run, with its process if that is visible; None if this user may use the run."""
        try:
            os.close(os.open(self.path / "state" / ".lock", os.O_RDONLY | os.O_CLOEXEC))
        except PermissionError:
            uid = self.path.stat().st_uid
        except OSError:
            return None
        else:
            return None
        try:
            name = pwd.getpwuid(uid).pw_name
        except KeyError:
            name = f"user {uid}"
        for each in psutil.process_iter(["cmdline"]):
            words = each.info["cmdline"] or ()
            # `local up` starts the runner as `elastic-ctr local run --dir FOLDER`.
            if "run" in words and str(self.path) in words:
                return f"{name} (pid {each.pid})"
        return name

    def absence(self) -> str:
        """Return a sentence on why nothing runs here, with the last lines of the runner's log and their time."""
        if (stranger := self.stranger()) is not None:
            return f"{self.path} belongs to {stranger}, and this user may not look into it; ask as that user, or name another folder by --dir"
        info = self.read()
        try:
            said = self.runner_log.read_text(errors="replace").splitlines()
            lines = [line.strip() for line in said if line.strip()][-_SHOWN_LINES:]
            said_at = self.runner_log.stat().st_mtime
        except OSError:
            lines, said_at = [], 0.0
        if info is None and not lines:
            return f"nothing runs in {self.path}: no run was ever started there; --dir names another folder"
        if info is not None and info.ended_at is not None and info.ended_at >= said_at:
            return f"nothing runs in {self.path}; the run ended at {_shown(info.ended_at)}: {info.ended}"
        if not lines:
            return f"nothing runs in {self.path}; the run was killed"
        return f"nothing runs in {self.path}; the last words in {self.runner_log}, of {_shown(said_at)}: {' / '.join(lines)}"


def write_json(path: Path, content: object) -> None:
    """Write a JSON file atomically. Raises OSError."""
    with appearing(path) as stream:
        stream.write(json.dumps(content, indent=1).encode() + b"\n")


def _close_to_others(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
        # A symbolic link has no mode of its own, and its target may belong to another user.
        if not stat.S_ISLNK(mode) and mode & _OTHERS:
            path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
    except FileNotFoundError:
        pass


def _shown(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def process_tree(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants; empty if it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def still_running(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Return the processes that have not ended; a zombie has ended."""
    return [each for each in processes if _runs(each)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
