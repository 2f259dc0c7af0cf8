"""Asking the roles of a local run: small JSON over HTTP, nothing that waits long."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

from elastic_ctr.runtime.http import bearer


class DoorClosed(OSError):
    """Nobody answered, or not with what was asked for."""


def ask(url: str, body: Any = None, timeout: float = 5.0, token: str | None = None) -> Any:
    """GET, or POST with a JSON body. Raises DoorClosed with the role's own sentence if it gave one."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout)
    try:
        data = None if body is None else json.dumps(body)
        headers = {**bearer(token), **({"content-type": "application/json"} if data else {})}
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request("GET" if body is None else "POST", path, data, headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise DoorClosed(f"{url} answers {answer.status}: {_sentence(text)}")
        return json.loads(text)
    except (http.client.HTTPException, ValueError) as wrong:
        raise DoorClosed(f"{url} does not answer as it should: {wrong}") from wrong
    except OSError as closed:
        if isinstance(closed, DoorClosed):
            raise
        raise DoorClosed(f"{url} does not answer: {closed.strerror or closed}") from closed
    finally:
        connection.close()


def _sentence(text: bytes) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text[:200].decode("utf-8", "replace")


def predict(address: str, model: str, lines: list[str]) -> tuple[list[float], list[int]]:
    """Probabilities and versions for lines of features, through the Open Inference Protocol. Raises DoorClosed."""
    body = {"inputs": [{"name": "line", "shape": [len(lines)], "datatype": "BYTES", "data": lines}]}
    answer = ask(f"http://{address}/v2/models/{model}/infer", body, timeout=30.0)
    outputs = {each["name"]: each["data"] for each in answer["outputs"]}
    return [float(p) for p in outputs["probability"]], [int(v) for v in outputs["version"]]
