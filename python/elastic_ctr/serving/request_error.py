"""The answer to a request that cannot be served: a status, and a sentence that names the field."""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt

from elastic_ctr.cube.client.connection import CubeUnavailable, VersionNotHeld

Floats = npt.NDArray[np.float32]

log = logging.getLogger(__name__)


class RequestError(Exception):
    """The request is answered with the HTTP status `status` and `sentence`; the server continues."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


class BadRequest(RequestError):
    """400: the request is malformed."""

    def __init__(self, sentence: str) -> None:
        super().__init__(400, sentence)


class NoProbability(RequestError):
    """500: the network's answer to instance `row` of the request, in its list `where`, is NaN."""

    def __init__(self, row: int, version: int, where: str = "instances") -> None:
        super().__init__(
            500,
            f"{where}[{row}]: the probability by version {version} is no number, so nothing is answered; a value of the network or of a key is "
            "damaged, or a number of the instance is very large",
        )
        self.row = row
        self.version = version


def answer_or_refusal(probabilities: Floats, version: int) -> Floats | NoProbability:
    wrong = np.isnan(probabilities)
    return NoProbability(int(wrong.argmax()), version) if wrong.any() else probabilities


def short_repr(value: object) -> str:
    """Return a value from a request for a sentence: short, and on one line."""
    if isinstance(value, str):
        return repr(value[:40] + "…" if len(value) > 40 else value)
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def request_error_of(error: Exception) -> RequestError:
    """Return the answer to a request that ended in this error."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, VersionNotHeld | CubeUnavailable):
        return RequestError(503, f"the embeddings cannot be looked up: {error}")
    # Details may contain addresses or paths, so only the log has them.
    log.error("a prediction failed", exc_info=error)
    return RequestError(500, f"the prediction failed ({type(error).__name__}); the log says why")
