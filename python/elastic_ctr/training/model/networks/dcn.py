"""dcn: cross layers of vectors beside a deep part."""

from typing import Any

from elastic_ctr.config.networks import Dcn
from elastic_ctr.training.model.networks.parts import (
    Inputs,
    fields_of,
    first_order,
    flat,
    hidden_layers,
    matrix,
    output,
    parameter,
)


def dcn(inputs: Inputs, settings: Dcn) -> Any:
    """The logit is Σ w + out([x L, deep(x 0)]), with x 0 = [v 1, …, v n, numbers] and x l+1 = x 0 (x l · w l) + b l + x l: -> [batch, 1].

    Wang et al., Deep & Cross Network for Ad Click Predictions, 2017. The paper has no first order; here the first-order weights of keys
    are added to the logit, else nothing would use them.
    """
    import paddle

    fields = fields_of(inputs)
    first = flat(fields, inputs)
    crossed, width = first, first.shape[1]
    for number in range(settings.cross_layers):
        scale = paddle.matmul(crossed, matrix([width, 1], f"cross{number}.w"))
        crossed = first * scale + parameter([width], f"cross{number}.b", 0.0) + crossed
    both = paddle.concat([crossed, hidden_layers(first, inputs, settings)], axis=1) if settings.layers else crossed
    return first_order(fields, inputs) + output(both, inputs)
