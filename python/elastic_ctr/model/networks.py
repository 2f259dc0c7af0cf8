"""The networks by name. A network is one function in one file: pooled slot vectors in, logit out."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elastic_ctr.model import deepfm, slot_dnn

NETWORKS: dict[str, Callable[[Any, int, int, tuple[int, ...], int], Any]] = {
    "slot-dnn": slot_dnn.logit,
    "deepfm": deepfm.logit,
}


@dataclass(frozen=True)
class Head:
    """From pooled vectors to a probability; built once for training and once for export, with the same names."""

    network: str
    slots: int
    dim: int
    layers: tuple[int, ...]
    output: str = "sigmoid"

    def __post_init__(self) -> None:
        if self.network not in NETWORKS:
            raise ValueError(f"model.network {self.network!r} is not one of {', '.join(sorted(NETWORKS))}")

    def logit(self, pooled: Any) -> Any:
        """[batch, slots * dim] -> [batch, 1]. softmax over two classes is the sigmoid of their difference."""
        two = self.output == "softmax"
        outputs = NETWORKS[self.network](pooled, self.slots, self.dim, self.layers, 2 if two else 1)
        return outputs[:, 1:2] - outputs[:, 0:1] if two else outputs

    def probability(self, pooled: Any) -> Any:
        import paddle

        return paddle.nn.functional.sigmoid(self.logit(pooled))
