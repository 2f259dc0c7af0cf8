"""Calls to the roles of a run: small JSON over HTTP, each with a short timeout."""

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from pydantic import ValidationError

from elastic_ctr.runtime.auth import Tokens, bearer
from elastic_ctr.runtime.status.master_status import TrainingStatus
from elastic_ctr.runtime.status.serving_status import ServingStatus
from elastic_ctr.runtime.status.status_document import StatusDocument
from elastic_ctr.runtime.status.transfer_status import ReleaseStatus

if TYPE_CHECKING:
    from elastic_ctr.cube.release import ReleaseDocument

RoleStatus = TrainingStatus | ReleaseStatus | ServingStatus
ROLES: dict[str, type[RoleStatus]] = {"master": TrainingStatus, "transfer": ReleaseStatus, "serving": ServingStatus}
"""The document of each role whose /status the commands read."""
S = TypeVar("S", bound=StatusDocument)


class EndpointUnavailable(OSError):
    """The endpoint does not answer, or not with the expected document. `status` and `reason` come from an error answer."""

    def __init__(self, sentence: str, status: int | None = None, reason: str = "") -> None:
        super().__init__(sentence)
        self.status = status
        self.reason = reason


class RequestRejected(EndpointUnavailable):
    """The endpoint refused the content of a request."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"{url} answers 400: {reason}", http.HTTPStatus.BAD_REQUEST, reason)


def ask(url: str, body: Any = None, timeout: float = 5.0, tokens: Tokens | None = None) -> Any:
    """GET, or POST with a JSON body. Raises EndpointUnavailable with the role's own sentence if there is one."""
    try:
        status, text = _exchange(url, body, timeout, bearer(tokens))
        found = json.loads(text) if status == http.HTTPStatus.OK else None
    except OSError as closed:
        raise EndpointUnavailable(f"{url} does not answer: {closed.strerror or closed}") from closed
    except (http.client.HTTPException, ValueError) as wrong:
        raise EndpointUnavailable(f"{url} does not answer as it should: {wrong}") from wrong
    if status == http.HTTPStatus.UNAUTHORIZED:
        wrong_token = "needs a token of its run" if tokens is None else "does not take the token that was given"
        raise EndpointUnavailable(
            f"{url} {wrong_token}; say --dir FOLDER for a run on this machine, or --token-file FILE"
        )
    if status == http.HTTPStatus.BAD_REQUEST:
        raise RequestRejected(url, _sentence(text))
    if status != http.HTTPStatus.OK:
        raise EndpointUnavailable(f"{url} answers {status}: {_sentence(text)}", status, _sentence(text))
    return found


def answers(url: str, timeout: float = 1.0) -> bool:
    """True if an HTTP endpoint answers with status 200."""
    try:
        return _exchange(url, None, timeout, {})[0] == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException, ValueError):
        return False


def _exchange(url: str, body: Any, timeout: float, headers: dict[str, str]) -> tuple[int, bytes]:
    """Raises OSError, http.client.HTTPException, ValueError."""
    parts = urlsplit(url)
    if not parts.hostname or parts.port is None:
        raise ValueError(f"{parts.netloc!r} is not HOST:PORT")
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    with closing(http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)) as connection:
        if body is None:
            connection.request("GET", path, headers=headers)
        else:
            connection.request("POST", path, json.dumps(body), headers | {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()


def _sentence(text: bytes) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return text[:200].decode("utf-8", "replace")


def role_status(kind: type[S], address: str) -> S:
    """Return the status of a role. Raises EndpointUnavailable, also if another role answers."""
    url = f"http://{address}/status"
    try:
        return kind.model_validate(ask(url))
    except ValidationError as wrong:
        errors = wrong.errors(include_url=False, include_input=False)
        # The fields without a default are those that no other role has.
        if any((each["type"], len(each["loc"])) in (("missing", 1), ("model_attributes_type", 0)) for each in errors):
            role = next(name for name, each in ROLES.items() if each is kind)
            reason = f"is not {role}'s; give the address of its status endpoint"
        else:
            field, message = ".".join(map(str, errors[0]["loc"])), errors[0]["msg"]
            reason = f"is not one that this release can show: {field}: {message}; are both of one release?"
        raise EndpointUnavailable(f"{url} {reason}") from wrong


def release_document(transfer: str) -> "ReleaseDocument":
    """Return the release document at the address of cube-transfer. Raises EndpointUnavailable."""
    from elastic_ctr.cube.release import ReleaseDocument

    try:
        return ReleaseDocument.model_validate(ask(f"http://{transfer}/release"))
    except ValidationError as wrong:
        raise EndpointUnavailable(
            f"http://{transfer}/release is not a release document; is cube-transfer there?"
        ) from wrong


# Serving, by the Open Inference Protocol.


def ready(address: str, model: str) -> None:
    """Raises EndpointUnavailable with serving's own sentence while it is not ready."""
    ask(f"http://{address}/v2/models/{model}/ready")


class Metadata(NamedTuple):
    """The inputs of a model: feasigns of its `slots` or, if these are empty, `columns`, datatypes by name; and the `versions`
    in serving's metadata.
    """

    slots: list[str]
    columns: dict[str, str]
    versions: list[int]


def metadata(address: str, model: str) -> Metadata:
    """Raises EndpointUnavailable."""
    document = ask(f"http://{address}/v2/models/{model}")
    with _open_inference(address):
        inputs = {str(each["name"]): str(each["datatype"]) for each in document["inputs"]}
        slots = [name for name, datatype in inputs.items() if datatype == "UINT64"]
        if not slots and inputs in ({}, {"line": "BYTES"}):
            raise ValueError("the metadata name no slot and no column")
        # The metadata have no column of the datatype UINT64.
        return Metadata(slots, {} if slots else inputs, [int(each) for each in document["versions"]])


def predict(address: str, model: str, lines: list[str]) -> tuple[list[float], list[int]]:
    """Return probability and version for each sample, a row as JSON or a line of features. Raises EndpointUnavailable."""
    if lines[:1] and lines[0].startswith("{"):
        return predict_rows(address, model, [json.loads(line) for line in lines])
    body = {"inputs": [{"name": "line", "shape": [len(lines)], "datatype": "BYTES", "data": lines}]}
    answer = ask(f"http://{address}/v2/models/{model}/infer", body, timeout=60.0)
    with _open_inference(address):
        outputs = {each["name"]: each["data"] for each in answer["outputs"]}
        rows = [(float(p), int(v)) for _, p, v in zip(lines, outputs["probability"], outputs["version"], strict=True)]
    return [probability for probability, _ in rows], [version for _, version in rows]


def predict_rows(address: str, model: str, rows: list[Any]) -> tuple[list[float], list[int]]:
    """Return probability and version for each row of columns. Raises EndpointUnavailable."""
    answer = ask(f"http://{address}/v1/models/{model}:predict", {"instances": rows}, timeout=60.0)
    with _open_inference(address):
        found, version = answer["predictions"], int(answer["model_version"])
        return [float(p) for _, p in zip(rows, found, strict=True)], [version] * len(rows)


def explain(address: str, model: str, instance: Any) -> dict[str, Any]:
    """Return `version`, `probability` and `features` of one instance, a row or a line of features. Raises EndpointUnavailable."""
    answer = ask(f"http://{address}/v1/models/{model}:explain", {"instances": [instance]}, timeout=60.0)
    with _open_inference(address):
        [found] = answer["explanations"]
        for each in found["features"]:
            float(each["contribution"]), float(each["without"]), str(each["against"])
        if not 0 < float(found["probability"]) < 1:
            raise ValueError(f"the probability is {found['probability']}")
        return {"version": int(answer["model_version"]), "probability": float(found["probability"]), **found}


@contextmanager
def _open_inference(address: str) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError) as wrong:
        raise EndpointUnavailable(
            f"{address} does not answer as the Open Inference Protocol says ({wrong!r}); give the port for predictions"
        ) from wrong
