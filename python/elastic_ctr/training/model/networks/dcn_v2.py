"""dcn-v2: cross layers of matrices, beside or before a deep part."""

from typing import Any

from elastic_ctr.config.networks import DcnV2
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


def dcn_v2(inputs: Inputs, settings: DcnV2) -> Any:
    """The logit is Σ w + out([x L, deep(x 0)]), or out(deep(x L)) where stacked, with x 0 = [v 1, …, v n, numbers] and
    x l+1 = x 0 ⊙ (x l W l + b l) + x l: -> [batch, 1]. With a rank W l is U l V l.

    Wang et al., DCN V2: Improved Deep & Cross Network and Practical Lessons for Web-scale Learning to Rank Systems, 2021. The paper has
    no first order; here the first-order weights of keys are added to the logit, else nothing would use them.
    """
    import paddle

    fields = fields_of(inputs)
    first = flat(fields, inputs)
    crossed, width = first, first.shape[1]
    for number in range(settings.cross_layers):
        if settings.rank is None:
            product = paddle.matmul(crossed, matrix([width, width], f"cross{number}.w"))
        else:
            inner = paddle.matmul(crossed, matrix([width, settings.rank], f"cross{number}.u"))
            product = paddle.matmul(inner, matrix([settings.rank, width], f"cross{number}.v"))
        crossed = first * (product + parameter([width], f"cross{number}.b", 0.0)) + crossed
    if settings.structure == "stacked":
        both = hidden_layers(crossed, inputs, settings)
    elif settings.layers:
        both = paddle.concat([crossed, hidden_layers(first, inputs, settings)], axis=1)
    else:
        both = crossed
    return first_order(fields, inputs) + output(both, inputs)
