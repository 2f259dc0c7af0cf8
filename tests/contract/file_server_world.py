"""The real file-server: nginx with the chart's own configuration, under an unprivileged user where we may choose one."""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from needs import program
from ports import free_port

CONFIGURATION = Path(__file__).parents[2] / "charts" / "elastic-ctr" / "files" / "nginx.conf"
# As long as the chart makes them, and longer than what nginx' maps take by themselves.
TOKEN = "a-token_of.the+file~server=" + "0123456789" * 4
_NOBODY_SPECIAL = 10001


def _limited(largest_file: int | None) -> list[str]:
    """A program started behind these words writes no larger file: to it the disk is full."""
    if largest_file is None:
        return []
    return ["sh", "-c", 'trap "" XFSZ; ulimit -f "$0"; exec "$@"', str(largest_file // 512)]


@contextmanager
def file_server_world(largest_file: int | None = None, token: str = TOKEN) -> Iterator["FileServer"]:
    """A running file-server; skips the test without nginx. Its folder is not pytest's, which is closed to other users."""
    nginx = program("nginx")
    with TemporaryDirectory(prefix="file-server-") as folder:
        made = FileServer(nginx, Path(folder), largest_file, token)
        try:
            yield made.start()
        finally:
            made.stop()


class FileServer:
    """Owns a folder with `conf` and `data`. Killed and started again it keeps its port and its files."""

    def __init__(self, nginx: str, folder: Path, largest_file: int | None, token: str) -> None:
        self._nginx = nginx
        self._data = folder / "data"
        self._conf = folder / "conf"
        self._log = folder / "log"
        self._largest_file = largest_file
        for each in (self._data, self._conf):
            each.mkdir(parents=True)
        self._user = _NOBODY_SPECIAL if os.geteuid() == 0 else None
        if self._user is not None:
            folder.chmod(0o755)
            os.chown(self._data, self._user, self._user)
        self.port = free_port()
        shutil.copy(CONFIGURATION, self._conf / "nginx.conf")
        (self._conf / "listen.conf").write_text(f"listen 127.0.0.1:{self.port};\n")
        self._tokens = folder / "tokens"
        self._tokens.mkdir()
        (self._conf / "tokens.conf").write_text(f'"~^Bearer (?<given>[A-Za-z0-9._~+=-]+)$" {self._tokens}/$given;\n')
        self.accept(token)
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "FileServer":
        arguments = [
            *_limited(self._largest_file),
            self._nginx,
            "-e",
            "stderr",
            "-p",
            str(self._data),
            "-c",
            str(self._conf / "nginx.conf"),
        ]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                arguments,
                stdout=log,
                stderr=log,
                user=self._user,
                group=self._user,
                extra_groups=None if self._user is None else [],
                start_new_session=True,
                cwd="/",
            )
        while not self._listens():
            if self._process.poll() is not None:
                raise RuntimeError(f"nginx ended: {self._log.read_text()}")
            time.sleep(0.01)
        return self

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        """SIGKILL to the master and its worker, as when a node dies."""
        assert self._process is not None
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        while self._listens():
            time.sleep(0.01)

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait(timeout=30)

    def accept(self, *valid: str) -> None:
        """These tokens, and no others, from now on."""
        for old in self._tokens.iterdir():
            old.unlink()
        for each in valid:
            (self._tokens / each).touch()

    def files(self) -> list[str]:
        """Every file on its volume, bodies under way included, but for the pid.

        nginx deletes the body of a request just after it has answered: such a body has two seconds to go.
        """
        deadline = time.monotonic() + 2
        while True:
            found = (each.relative_to(self._data) for each in self._data.rglob("*") if each.is_file())
            names = sorted(str(each).removeprefix("store/") for each in found if each.name != "nginx.pid")
            if not any(each.startswith("tmp/") for each in names) or time.monotonic() > deadline:
                return names
            time.sleep(0.01)
