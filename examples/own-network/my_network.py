"""A factorization machine whose pairs have weights, with a mask of the pairs that may interact (FwFM; Pan et al., 2018).

The logit is Σ w + Σ over chosen pairs i < j of r i,j (v i · v j) + tower([v 1, …, v n, numbers]).
"""

import paddle

from elastic_ctr.network import Inputs, fields_of, first_order, flat, parameter, tower


def logit(inputs: Inputs, settings):
    """`settings.pairs`: pairs of slots by their place, from 0, in the order of `data.slots` or `features`."""
    fields = fields_of(inputs)
    pairs = settings["pairs"]
    # [batch, pairs, dim - 1] of the first and of the second slot of each pair.
    first = paddle.stack([fields.vectors[:, one, :] for one, _ in pairs], axis=1)
    second = paddle.stack([fields.vectors[:, other, :] for _, other in pairs], axis=1)
    products = paddle.sum(first * second, axis=2)
    weighted = paddle.matmul(products, parameter([len(pairs), 1], "pairs.r", 1.0))
    deep = tower(flat(fields, inputs), inputs, settings["layers"], dropout=settings.get("dropout", 0.0))
    return first_order(fields, inputs) + weighted + deep
