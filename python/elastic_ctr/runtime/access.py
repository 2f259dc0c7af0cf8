"""The check that a caller has the right for a call, and the audit of such calls."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request

from elastic_ctr.runtime.audit import AuditLog
from elastic_ctr.runtime.auth import Right, Token, Tokens
from elastic_ctr.runtime.http import RequestRefused

ANYONE = "-"


@dataclass
class AuditedCall:
    """A call under way. `on` names what the call changes; the handler sets it once it knows."""

    token: str
    on: str = ANYONE


class Access:
    """The access rules of one role. Without tokens (`None`), as in a role started by hand, every caller has every right."""

    def __init__(self, tokens: Mapping[Right, Tokens] | None, audit: AuditLog) -> None:
        self.audit = audit
        self._tokens = tokens
        self._seen = {right: each.valid() for right, each in (tokens or {}).items()}

    def name_of(self, authorization: str, right: Right, call: str, caller: str) -> str | None:
        """Return the name of the caller's token, or None if the caller lacks the right; such a refusal is audited."""
        if self._tokens is None:
            return ANYONE
        tokens = self._tokens.get(right, Tokens())
        name = tokens.name_of(authorization)
        self._tell_replacement(right, tokens)
        if name is None:
            others = (each.name_of(authorization) for other, each in self._tokens.items() if other is not right)
            known = next(filter(None, others), ANYONE)
            self.audit.refused(known, call, f"from {caller}", f"refused: no token of the right '{right.value}'")
        return name

    def _tell_replacement(self, right: Right, tokens: Tokens) -> None:
        now = tokens.valid()
        if now != self._seen.get(right, ()):
            self._seen[right] = now
            self.audit.change(ANYONE, "tokens", f"right '{right.value}'", f"valid now: {_names(now)}")

    def require(self, request: Request, right: Right) -> str:
        """Return the name of the caller's token. Raises RequestRefused (401)."""
        # A socket of IPv6 shows callers of IPv4 so.
        caller = ANYONE if request.client is None else request.client.host.removeprefix("::ffff:")
        call = f"{request.method} {request.url.path}"
        name = self.name_of(request.headers.get("authorization", ""), right, call, caller)
        if name is None:
            raise RequestRefused(
                401,
                f"this call needs the header 'authorization: Bearer <token>' with a token of the right '{right.value}'",
            )
        return name

    @contextmanager
    def audited(self, request: Request, right: Right, call: str, on: str = ANYONE) -> Iterator[AuditedCall]:
        """Check the right of a call that changes something, and write its result to the audit log. Raises RequestRefused (401)."""
        under_way = AuditedCall(self.require(request, right), on)
        result = "done"
        try:
            yield under_way
        except HTTPException as refused:
            result = f"refused: {refused.detail}"
            raise
        except BaseException as failed:
            result = f"failed: {type(failed).__name__}"
            raise
        finally:
            self.audit.change(under_way.token, call, under_way.on, result)


def _names(tokens: tuple[Token, ...]) -> str:
    return ", ".join(each.name for each in tokens)
