"""The folder of a run, for other processes: its runner, addresses, problems, and how it ended."""

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
from elastic_ctr.store.temporary import appearing

DEFAULT_FOLDER = Path("elastic-ctr-local")
TOKENS = "tokens"
# What roles of a run, and the run itself, write below its folder.
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
        # The output of a runner in the background.
        self.runner_log = self.logs / "local.log"
        self._file = self.path / "run.json"

    def token_file(self, right: Right) -> Path:
        """Raises nothing where it is not there yet."""
        return self.tokens / right.value

    @contextmanager
    def private(self) -> Iterator[None]:
        """What this process and its children write within the block is for this user alone. Raises OSError."""
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
        """Keep clicks, logs and tokens that an earlier run has left readable from other users of the machine. Raises OSError."""
        for name in ("", *_OWN):
            top = self.path / name
            for each in (top, *(top.rglob("*") if name else ())):
                _close_to_others(each)

    def write_tokens(self) -> None:
        """One token for each right, unless there are some. Raises OSError, ValueError for a file without tokens."""
        self.tokens.mkdir(mode=0o700, parents=True, exist_ok=True)
        for right in Right:
            file = self.token_file(right)
            if not file.exists():
                with appearing(file) as stream:
                    os.fchmod(stream.fileno(), 0o600)
                    stream.write(f"local {secrets.token_urlsafe(32)}\n".encode())
            TokenFile(file)
        # Of an earlier release: no role takes it any more.
        (self.path / "token").unlink(missing_ok=True)

    def read(self) -> RunInfo | None:
        """None where no run was ever started."""
        try:
            return RunInfo(**json.loads(self._file.read_text()))
        except (OSError, ValueError, TypeError):
            return None

    def write(self, info: RunInfo) -> None:
        """Raises OSError."""
        write_json(self._file, asdict(info))

    def runner(self) -> int | None:
        """The process that looks after the run, while there is one."""
        return StateLock(self.path / "state").owner()

    def stranger(self) -> str | None:
        """The user whose run this is, and its process where that can be seen; None: this user may look at it."""
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
        pid = next(
            (each.pid for each in psutil.process_iter(["cmdline"]) if _is_runner(each.info["cmdline"], self.path)), None
        )
        return name if pid is None else f"{name} (pid {pid})"

    def absence(self) -> str:
        """Why nothing runs here: the last words of the runner, with their time."""
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
    """Whole or not at all. Raises OSError."""
    with appearing(path) as stream:
        stream.write(json.dumps(content, indent=1).encode() + b"\n")


def _close_to_others(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
        # A link has no mode of its own, and what it leads to may be somebody's else.
        if not stat.S_ISLNK(mode) and mode & _OTHERS:
            path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
    except FileNotFoundError:
        pass


def _is_runner(words: Sequence[str] | None, folder: Path) -> bool:
    """Of `elastic-ctr local run --dir FOLDER`, as `local up` starts it."""
    return words is not None and "run" in words and str(folder) in words


def _shown(moment: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(moment))


def process_tree(pid: int) -> list[psutil.Process]:
    """A process and all below it; empty once it is gone."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def still_running(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended; one that only waits to be reaped has."""
    return [each for each in processes if _runs(each)]


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
