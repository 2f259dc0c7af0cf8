"""Draining a cube pod, for preStop. The module imports little, so that it starts fast in a pod that ends."""

import http.client
import json
import time
from urllib.parse import urlsplit

from elastic_ctr.runtime.auth import Tokens, bearer

# In a cluster the pod's terminationGracePeriodSeconds ends the drain sooner.
LONGEST_DRAIN_SECONDS = 86_400.0
_ASK_SECONDS = 5.0
_LOOK_SECONDS = 0.2


class DrainRefused(RuntimeError):
    """The agent refused the order to drain; the text is its own sentence."""


def run_cube_drain(
    *, agent_url: str, tokens: Tokens | None = None, grace_seconds: float = LONGEST_DRAIN_SECONDS
) -> bool:
    """Order the agent to drain and wait until it has ended; for preStop of both containers of a cube pod.

    Return False if the grace ran out first. A refused connection means that the agent has ended; a slow answer does not.
    Raises DrainRefused.
    """
    until = time.monotonic() + grace_seconds
    ordered = False
    while True:
        try:
            if ordered:
                _ask(agent_url, "GET", "/healthz", None)
            else:
                _ask(agent_url, "POST", "/drain", tokens)
                ordered = True
        except ConnectionRefusedError:
            return True
        except (OSError, http.client.HTTPException):
            # The agent is ending or busy; the next call shows which.
            pass
        if time.monotonic() >= until:
            return False
        time.sleep(_LOOK_SECONDS)


def _ask(agent_url: str, method: str, path: str, tokens: Tokens | None) -> None:
    """Raises OSError, HTTPException, DrainRefused."""
    parts = urlsplit(agent_url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_ASK_SECONDS)
    try:
        connection.request(method, path, headers=bearer(tokens))
        answer = connection.getresponse()
        text = answer.read()
    finally:
        connection.close()
    if answer.status >= http.HTTPStatus.BAD_REQUEST and method == "POST":
        raise DrainRefused(f"the agent at {agent_url} answers {answer.status}: {error_sentence(text)}")


def error_sentence(text: bytes) -> str:
    """The sentence in the body of an error answer."""
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text[:200].decode("utf-8", "replace")
