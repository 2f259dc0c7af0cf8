"""deepfm: first order, pairs and a deep part, over the same vectors."""

from typing import Any

from elastic_ctr.config.networks import DeepFm
from elastic_ctr.training.model.networks.parts import Inputs, fields_of, first_order, flat, pairs, tower


def deepfm(inputs: Inputs, settings: DeepFm) -> Any:
    """The logit is Σ w + Σ over pairs of v · v' + tower([v 1, …, v n, numbers]): -> [batch, 1].

    Guo et al., DeepFM: A Factorization-Machine based Neural Network for CTR Prediction, 2017.
    """
    fields = fields_of(inputs)
    return first_order(fields, inputs) + pairs(fields, inputs) + tower(flat(fields, inputs), inputs, settings)
