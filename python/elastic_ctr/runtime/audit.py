"""The audit log of a role: changes and refused calls, each with the name of the caller's token.

A line is JSON. It goes to a bounded file in the role's state folder and to the process log. Refused calls have a separate file,
so an unauthorized caller can neither fill the disk nor rotate the changes out.
"""

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

# Audit lines are logged at INFO even if `log.level` is higher.
log = logging.getLogger("elastic_ctr.audit")
log.setLevel(logging.INFO)

LOG_PREFIX = "audit "
CHANGES, REFUSALS = "audit.jsonl", "refused.jsonl"
# Size at which a file is rotated. One rotated file is kept.
_FILE_BYTES = 1 << 20
_REFUSALS_A_MINUTE = 30
_MINUTE = 60.0
# Posts of clicks are summed up in one line per token and this many seconds.
_COUNT_SECONDS = 600.0
_LONGEST = 300


@dataclass(frozen=True)
class AuditLine:
    """`at` is in Unix seconds, `token` is the name of the caller's token, `on` is the object of the call."""

    at: float
    role: str
    token: str
    call: str
    on: str
    result: str

    @classmethod
    def parse(cls, text: str) -> "AuditLine | None":
        """Return None if the text is not an audit line."""
        try:
            found = json.loads(text)
            at = float(found["at"])
            return cls(at, *(str(found[name]) for name in ("role", "token", "call", "on", "result")))
        except (ValueError, KeyError, TypeError):
            return None


@dataclass
class _Posts:
    requests: int = 0
    records: int = 0
    since: float = field(default_factory=time.time)


class AuditLog:
    """Thread-safe. If the disk is full, the file lacks the line, but the call succeeds and the process log has the line."""

    def __init__(self, role: str, folder: Path | None = None, clock: Callable[[], float] = time.time) -> None:
        """Without a folder, lines go to the process log only."""
        self._role = role
        self._folder = folder
        self._clock = clock
        self._lock = threading.Lock()
        self._minute = 0
        self._refused = 0
        self._posts: dict[str, _Posts] = {}

    def change(self, token: str, call: str, on: str, result: str) -> None:
        with self._lock:
            self._write(CHANGES, token, call, on, result)

    def refused(self, token: str, call: str, on: str, result: str) -> None:
        """Write a line for each of a minute's first 30 refusals; the next minute's first refusal adds one line that counts the rest."""
        with self._lock:
            minute = int(self._clock() // _MINUTE)
            if minute != self._minute:
                if (more := self._refused - _REFUSALS_A_MINUTE) > 0:
                    self._write(REFUSALS, "-", "calls", "-", f"{more} more calls were refused in the minute before")
                self._minute, self._refused = minute, 0
            self._refused += 1
            if self._refused <= _REFUSALS_A_MINUTE:
                self._write(REFUSALS, token, call, on, result)

    def posted(self, token: str, records: int) -> None:
        """Count a post of clicks; ten minutes of posts make one line."""
        with self._lock:
            now = self._clock()
            posts = self._posts.setdefault(token, _Posts(since=now))
            posts.requests += 1
            posts.records += records
            if now - posts.since >= _COUNT_SECONDS:
                self._write_posts(token, self._posts.pop(token))

    def close(self) -> None:
        """Write the counts that are not written yet."""
        with self._lock:
            for token in list(self._posts):
                self._write_posts(token, self._posts.pop(token))

    def _write_posts(self, token: str, posts: _Posts) -> None:
        took = self._clock() - posts.since
        on = f"{posts.requests} requests, {posts.records} lines in {took:.0f} s"
        self._write(CHANGES, token, "POST /v1/clicks", on, "done")

    def _write(self, name: str, token: str, call: str, on: str, result: str) -> None:
        line = AuditLine(round(self._clock(), 3), self._role, token, *(_shown(each) for each in (call, on, result)))
        text = json.dumps(asdict(line))
        log.info("%s%s", LOG_PREFIX, text)
        if self._folder is None:
            return
        path = self._folder / f"{self._role}.{name}"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if path.exists() and path.stat().st_size + len(text) >= _FILE_BYTES:
                path.replace(former(path))
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            with os.fdopen(handle, "a") as file:
                file.write(f"{text}\n")
        except OSError as failed:
            log.warning("the audit file %s cannot be written: %s", path, failed.strerror)


def former(path: Path) -> Path:
    """Return the path that an audit file is rotated to."""
    return path.with_name(f"{path.name}.1")


def lines_below(folder: Path) -> Iterator[AuditLine]:
    """Yield the lines of all audit files in the subfolders of `folder`, each of which is one role's state."""
    for name in (CHANGES, REFUSALS):
        for file in (*folder.glob(f"*/*.{name}"), *folder.glob(f"*/*.{former(Path(name))}")):
            with file.open(errors="replace") as stream:
                yield from filter(None, map(AuditLine.parse, stream))


def _shown(text: str) -> str:
    """Return text from a caller, cut to 300 characters, with `?` for each unprintable one."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:_LONGEST])
