"""deepfm: first order, pairs and a deep part, over the same vectors."""

from typing import Any

from elastic_ctr.config.model import Model
from elastic_ctr.model.networks.inputs import Inputs
from elastic_ctr.model.networks.parts import deep, fields_of, first_order, pairs


def deepfm(inputs: Inputs, model: Model) -> Any:
    """The logit is Σ w + Σ over pairs of v · v' + tower([v 1, …, v n, numbers]): -> [batch, 1].

    Guo et al., DeepFM: A Factorization-Machine based Neural Network for CTR Prediction, 2017.
    """
    fields = fields_of(inputs, model)
    return first_order(fields, inputs) + pairs(fields, inputs, model) + deep(fields, inputs, model)
