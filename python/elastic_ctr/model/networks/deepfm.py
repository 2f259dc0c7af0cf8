"""deepfm: first order, pairs and a deep part, over the same vectors."""

from typing import Any

from elastic_ctr.config.model import Model
from elastic_ctr.model.networks.inputs import Inputs
from elastic_ctr.model.networks.parts import first_order, flat, pairs, tower, vectors_of, with_numbers


def deepfm(inputs: Inputs, model: Model) -> Any:
    """The logit is Σ w + Σ over pairs of v · v' + tower([v 1, …, v n, numbers]): -> [batch, 1].

    Guo et al., DeepFM: A Factorization-Machine based Neural Network for CTR Prediction, 2017.
    """
    shallow = first_order(inputs, model) + pairs(inputs, model)
    return shallow + tower(with_numbers(flat(vectors_of(inputs, model), inputs, model), inputs), model)
