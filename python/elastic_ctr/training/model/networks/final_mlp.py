"""final-mlp: two streams of fully connected layers, and the products of their results."""

from typing import Any

from elastic_ctr.config.networks import FinalMlp
from elastic_ctr.training.model.networks.parts import (
    Inputs,
    connected,
    fields_of,
    first_order,
    flat,
    hidden_layers,
    logit_of_classes,
    matrix,
)


def final_mlp(inputs: Inputs, settings: FinalMlp) -> Any:
    """The logit is Σ w + b + o · w 1 + o' · w 2 + Σ over heads h of o h W h o' hᵀ: -> [batch, 1].

    o and o' are the results of two streams over x = [v 1, …, v n, numbers], cut into heads. With gating a stream gets x ⊙ 2 sigmoid(mlp(x))
    with an mlp of its own. Mao et al., FinalMLP: An Enhanced Two-Stream MLP Model for CTR Prediction, 2023, whose gates may also read
    chosen slots alone. The paper has no first order; here the first-order weights of keys are added to the logit, else nothing
    would use them.
    """
    import paddle

    fields = fields_of(inputs)
    both = flat(fields, inputs)
    streams = []
    for prefix, widths in (("first", settings.layers), ("second", settings.second_layers)):
        own = both
        if settings.gating:
            hidden = hidden_layers(both, inputs, settings, settings.gate_layers, f"{prefix}.gate")
            own = both * (2 * connected(hidden, both.shape[1], f"{prefix}.gate.out", "sigmoid"))
        streams.append(hidden_layers(own, inputs, settings, widths, f"{prefix}.fc"))
    # Only the first linear part has a bias, which is that of the sum.
    linear = connected(streams[0], inputs.classes, "out")
    linear += paddle.matmul(streams[1], matrix([settings.second_layers[-1], inputs.classes], "out.second.w"))
    classes = linear + _products(streams[0], streams[1], settings.heads, inputs.classes)
    return first_order(fields, inputs) + logit_of_classes(classes)


def _products(first: Any, second: Any, heads: int, classes: int) -> Any:
    """[batch, n] and [batch, m] -> [batch, classes]; a head has a matrix for each class."""
    import paddle

    one, other = first.shape[1] // heads, second.shape[1] // heads
    weights = matrix([heads, one, classes * other], "bilinear.w")
    pieces = paddle.transpose(paddle.reshape(first, [-1, heads, one]), [1, 0, 2])
    mixed = paddle.reshape(paddle.transpose(paddle.matmul(pieces, weights), [1, 0, 2]), [-1, heads, classes, other])
    products = mixed * paddle.reshape(second, [-1, heads, 1, other])
    return paddle.sum(products, axis=[1, 3])
