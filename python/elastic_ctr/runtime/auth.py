"""Rights and tokens: the token file of a right, and the check of the `authorization` header.

A token file has one or two lines `name token`. A client sends the first token and a server accepts both, so a token can be
replaced while roles run. A role reads the file again when it has changed.
"""

import hmac
import logging
import re
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import NamedTuple

log = logging.getLogger(__name__)

_FILE_BYTES = 4096
_MOST_TOKENS = 2
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# Characters valid in a header, in nginx and in a file name: the file-server looks a token up as a file, so not `.` or `..`.
_SECRET = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._~+=-]{1,200}")


class Right(str, Enum):
    """The permission that a token grants. No right includes another one."""

    CLICKS = "clicks"
    """Post clicks to the intake."""
    OPERATE = "operate"
    """An operator's orders: roll back, resume, retry a pass."""
    INTERNAL = "internal"
    """Calls between the roles of a release: store, tasks, reports, the log of clicks."""


class Token(NamedTuple):
    """`name` goes to the audit log; `secret` is never logged."""

    name: str
    secret: str


def tokens_in(text: bytes, source: str) -> tuple[Token, ...]:
    """Return the tokens in the text of a file or Secret. Raises ValueError, which names `source` and never quotes the text."""
    if len(text) > _FILE_BYTES:
        raise ValueError(f"{source} has more than {_FILE_BYTES} bytes, so it holds no tokens; is it the right file?")
    lines = [line.split() for line in text.decode("utf-8", "replace").splitlines() if line.strip()]
    if not lines:
        raise ValueError(f"{source} is empty; put a line `name token` in it")
    if len(lines) > _MOST_TOKENS:
        raise ValueError(
            f"{source} has {len(lines)} lines, and two tokens at most are valid at a time; leave the others out"
        )
    for number, words in enumerate(lines, 1):
        if len(words) != len(Token._fields) or not (_NAME.fullmatch(words[0]) and _SECRET.fullmatch(words[1])):
            raise ValueError(
                f"line {number} of {source} is not `name token`: the name has letters, digits and . _ -, the token at most 200 "
                "letters, digits and . _ ~ + = -"
            )
    return tuple(Token(name, secret) for name, secret in lines)


class Tokens:
    """The valid tokens of one right. If there are none, every call that needs the right is refused."""

    def __init__(self, tokens: Sequence[Token] = ()) -> None:
        self._tokens = tuple(tokens)

    def valid(self) -> tuple[Token, ...]:
        return self._tokens

    def header(self) -> dict[str, str]:
        """Return the header that a client with these tokens adds to its calls."""
        valid = self.valid()
        return {"authorization": f"Bearer {valid[0].secret}"} if valid else {}

    def name_of(self, authorization: str) -> str | None:
        """Return the name of the token in an `authorization` header, or None. The time does not depend on the wrong token."""
        given, found = authorization.encode("utf-8", "replace"), None
        for name, secret in self.valid():
            if hmac.compare_digest(given, f"Bearer {secret}".encode()):
                found = name
        return found


class TokenFile(Tokens):
    """The tokens of a mounted file, which may be replaced at any time. If a replacement is unreadable, it is logged and the former
    tokens stay valid.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError, ValueError."""
        self.path = path
        self._stamp, tokens = self._read()
        super().__init__(tokens)

    def valid(self) -> tuple[Token, ...]:
        try:
            stamp = self._stamp_now()
        except OSError:
            stamp = ()
        if stamp != self._stamp:
            # Set before the read, so that an unreadable file is logged once.
            self._stamp = stamp
            try:
                self._stamp, self._tokens = self._read()
            except (OSError, ValueError) as failed:
                log.warning("the former tokens stay valid: %s", failed)
        return self._tokens

    def _stamp_now(self) -> tuple[int, ...]:
        found = self.path.stat()
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _read(self) -> tuple[tuple[int, ...], tuple[Token, ...]]:
        # Taken before the text: a file that changes in between is read again at the next call.
        stamp = self._stamp_now()
        with self.path.open("rb") as file:
            return stamp, tokens_in(file.read(_FILE_BYTES + 1), str(self.path))


def bearer(tokens: Tokens | None) -> dict[str, str]:
    """Return the header that a client adds, or {} if it has no tokens because no call needs one."""
    return {} if tokens is None else tokens.header()
