"""slot-dnn: fully connected layers over all pooled values and numbers."""

from typing import Any

from elastic_ctr.config.networks import SlotDnn
from elastic_ctr.training.model.networks.parts import Inputs, tower, with_numbers


def slot_dnn(inputs: Inputs, settings: SlotDnn) -> Any:
    """The logit is tower([slot 1, …, slot n, numbers]), a slot with its first-order weight: -> [batch, 1].

    The network of ElasticCTR and of PaddleRec's online trainer.
    """
    return tower(with_numbers(inputs.pooled, inputs), inputs, settings)
