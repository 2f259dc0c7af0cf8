"""Whether a serving answers a prediction: through the Open Inference Protocol, as any client would."""

import math
from typing import Any, NamedTuple

from elastic_ctr.cli.checked import CheckFailed
from elastic_ctr.local.endpoints import EndpointUnavailable, ask


class ServingChecked(NamedTuple):
    """A prediction, and the version that it was made with."""

    address: str
    model: str
    version: int
    probability: float
    slots: int

    def sentence(self) -> str:
        return (
            f"serving at {self.address} answers a line of {self.slots} slots with {self.probability:.6g}, "
            f"by version {self.version}"
        )

    def as_dict(self) -> dict[str, Any]:
        return self._asdict()


def verify_serving(address: str, model: str) -> ServingChecked:
    """Raises CheckFailed."""
    url = f"http://{address}/v2/models/{model}"
    try:
        ask(f"{url}/ready")
        slots, named = _metadata(ask(url))
        line = " ".join(f"{number}:{slot}" for number, slot in enumerate(slots, 1))
        tensor = {"name": "line", "shape": [1], "datatype": "BYTES", "data": [line]}
        probability, version = _prediction(ask(f"{url}/infer", {"inputs": [tensor]}, timeout=30))
        if version not in named:
            # It may have gone live between the two questions.
            _, named = _metadata(ask(url))
    except EndpointUnavailable as closed:
        raise CheckFailed(f"serving at {address}: {closed}") from closed
    except (KeyError, IndexError, TypeError, ValueError) as strange:
        raise CheckFailed(
            f"serving at {address} does not answer as the Open Inference Protocol says ({strange!r}); "
            "is it the port for predictions?"
        ) from strange
    if not math.isfinite(probability) or not 0 < probability < 1:
        raise CheckFailed(f"serving at {address} answers {probability}, which is no probability between 0 and 1")
    if version not in named:
        raise CheckFailed(
            f"serving at {address} answers by version {version} and names {', '.join(map(str, named)) or 'none'}",
            may_pass=True,
        )
    return ServingChecked(address, model, version, probability, len(slots))


def _metadata(document: Any) -> tuple[list[str], list[int]]:
    """Slots of the model, and the versions that are named. Raises as whatever is missing or strange."""
    slots = [each["name"] for each in document["inputs"] if each["datatype"] == "UINT64"]
    if not slots:
        raise ValueError("the metadata name no slot")
    return slots, [int(each) for each in document["versions"]]


def _prediction(document: Any) -> tuple[float, int]:
    outputs = {each["name"]: each["data"] for each in document["outputs"]}
    return float(outputs["probability"][0]), int(outputs["version"][0])
