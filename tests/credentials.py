"""Tokens of tests: in memory, or in files as roles have them."""

from pathlib import Path

from elastic_ctr.config.role_files import Auth
from elastic_ctr.runtime.access import Access
from elastic_ctr.runtime.audit import AuditLog
from elastic_ctr.runtime.auth import Right, Token, Tokens

NAME = "test"


def tokens(secret: str) -> Tokens:
    return Tokens([Token(NAME, secret)])


def access(secret: str | None, audit: AuditLog | None = None) -> Access:
    """Of a role whose rights have one token together; None: no call needs one."""
    rights = None if secret is None else dict.fromkeys(Right, tokens(secret))
    return Access(rights, audit or AuditLog("test"))


def auth(folder: Path, secret: str) -> Auth:
    """The files of all rights, with one token."""
    folder.mkdir(parents=True, exist_ok=True)
    for right in Right:
        (folder / right.value).write_text(f"{NAME} {secret}\n")
    return Auth.of(str(folder), list(Right))
