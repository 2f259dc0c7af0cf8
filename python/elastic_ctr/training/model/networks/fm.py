"""fm: a factorization machine."""

from typing import Any

from elastic_ctr.config.networks import Fm
from elastic_ctr.training.model.networks.parts import Inputs, bias, fields_of, first_order, pairs


def fm(inputs: Inputs, _: Fm) -> Any:
    """The logit is b + Σ w + Σ over pairs of v · v': -> [batch, 1]. Several keys of a slot count as one field, their sum or mean.

    Rendle, Factorization Machines, 2010.
    """
    fields = fields_of(inputs)
    return first_order(fields, inputs) + pairs(fields, inputs) + bias()
