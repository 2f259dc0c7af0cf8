"""wide-deep: a linear part for memorisation, and a deep part for generalisation."""

from typing import Any

from elastic_ctr.config.networks import WideDeep
from elastic_ctr.training.model.networks.parts import Inputs, fields_of, first_order, flat, tower


def wide_deep(inputs: Inputs, settings: WideDeep) -> Any:
    """The logit is Σ w + tower([v 1, …, v n, numbers]): -> [batch, 1]. Crosses for the wide part are features of their own (`crossed`).

    Cheng et al., Wide & Deep Learning for Recommender Systems, 2016.
    """
    fields = fields_of(inputs)
    return first_order(fields, inputs) + tower(flat(fields, inputs), inputs, settings)
