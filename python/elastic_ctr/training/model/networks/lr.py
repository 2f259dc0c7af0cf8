"""lr: logistic regression."""

from typing import Any

from elastic_ctr.config.networks import Lr
from elastic_ctr.training.model.networks.parts import Inputs, bias, fields_of, first_order


def lr(inputs: Inputs, _: Lr) -> Any:
    """The logit is b + Σ w of the keys + Σ w x of the numbers: -> [batch, 1]. The vectors of keys are not used.

    McMahan et al., Ad Click Prediction: a View from the Trenches, 2013.
    """
    return first_order(fields_of(inputs), inputs) + bias()
