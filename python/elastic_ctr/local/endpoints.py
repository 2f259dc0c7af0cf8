"""Asking the roles of a run: small JSON over HTTP, nothing that waits long."""

import http.client
import json
from typing import Any
from urllib.parse import urlsplit


class EndpointUnavailable(OSError):
    """Nobody answered, or not with what was asked for."""


def ask(url: str, body: Any = None, timeout: float = 5.0, token: str | None = None) -> Any:
    """GET, or POST with a JSON body. Raises EndpointUnavailable with the role's own sentence if it gave one."""
    connection: http.client.HTTPConnection | None = None
    try:
        parts = urlsplit(url)
        if not parts.hostname or parts.port is None:
            raise EndpointUnavailable(f"{parts.netloc!r} is no HOST:PORT")
        connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
        data = None if body is None else json.dumps(body)
        # As runtime.http.bearer: importing that module would import a whole web server.
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        if data is not None:
            headers["content-type"] = "application/json"
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        connection.request("GET" if body is None else "POST", path, data, headers)
        answer = connection.getresponse()
        text = answer.read()
        if answer.status == http.HTTPStatus.UNAUTHORIZED:
            wrong = "needs the token of its run" if token is None else "has another token than the one that was given"
            raise EndpointUnavailable(
                f"{url} {wrong}; say --dir FOLDER for a run on this machine, or --token-file FILE"
            )
        if answer.status != http.HTTPStatus.OK:
            raise EndpointUnavailable(f"{url} answers {answer.status}: {_sentence(text)}")
        return json.loads(text)
    except (http.client.HTTPException, ValueError) as wrong:
        raise EndpointUnavailable(f"{url} does not answer as it should: {wrong}") from wrong
    except OSError as closed:
        if isinstance(closed, EndpointUnavailable):
            raise
        raise EndpointUnavailable(f"{url} does not answer: {closed.strerror or closed}") from closed
    finally:
        if connection is not None:
            connection.close()


def _sentence(text: bytes) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text[:200].decode("utf-8", "replace")


def predict(address: str, model: str, lines: list[str]) -> tuple[list[float], list[int]]:
    """Probabilities and versions for lines of features, through the Open Inference Protocol. Raises EndpointUnavailable."""
    body = {"inputs": [{"name": "line", "shape": [len(lines)], "datatype": "BYTES", "data": lines}]}
    answer = ask(f"http://{address}/v2/models/{model}/infer", body, timeout=30.0)
    outputs = {each["name"]: each["data"] for each in answer["outputs"]}
    return [float(p) for p in outputs["probability"]], [int(v) for v in outputs["version"]]
