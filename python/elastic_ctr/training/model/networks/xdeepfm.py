"""xdeepfm: a compressed interaction network (CIN) over whole vectors, and a deep part."""

from typing import Any

from elastic_ctr.config.networks import XDeepFm
from elastic_ctr.training.model.networks.parts import (
    Inputs,
    all_vectors,
    fields_of,
    first_order,
    flat,
    hidden_layers,
    matrix,
    output,
)


def xdeepfm(inputs: Inputs, settings: XDeepFm) -> Any:
    """The logit is Σ w + out([p 1, …, p K, deep([v 1, …, v n, numbers])]): -> [batch, 1].

    X 0 has the vectors of slots and numbers; map h of layer k is Σ over i, j of W k,h,i,j (X k-1,i ⊙ X 0,j), and p k has the sum of each
    of its maps. Lian et al., xDeepFM: Combining Explicit and Implicit Feature Interactions for Recommender Systems, 2018; the layers of
    the CIN are linear, which the paper found best.
    """
    import paddle

    fields = fields_of(inputs)
    # The sums run over maps, so the coordinates of the vectors come first: [batch, dim - 1, fields].
    first = paddle.transpose(all_vectors(fields, inputs), [0, 2, 1])
    maps, sums = first, []
    for number, width in enumerate(settings.cin_layers):
        products = paddle.unsqueeze(maps, 3) * paddle.unsqueeze(first, 2)
        count = maps.shape[2] * first.shape[2]
        weights = matrix([count, width], f"cin{number}.w")
        maps = paddle.matmul(paddle.reshape(products, [-1, inputs.dim - 1, count]), weights)
        sums.append(paddle.sum(maps, axis=1))
    deep = [hidden_layers(flat(fields, inputs), inputs, settings)] if settings.layers else []
    return first_order(fields, inputs) + output(paddle.concat([*sums, *deep], axis=1), inputs)
