"""DeepFM: first-order weights, pairwise products of slot vectors, and a deep tower over the vectors.

Column 0 of a key's values is its first-order weight, the columns after it its vector: one table holds both.
Guo et al., DeepFM: A Factorization-Machine based Neural Network for CTR Prediction, 2017.
"""

from typing import Any

from elastic_ctr.model import slot_dnn


def logit(pooled: Any, slots: int, dim: int, layers: tuple[int, ...], outputs: int) -> Any:
    """Paddle variables in and out: [batch, slots * dim] -> [batch, outputs]."""
    import paddle

    values = paddle.reshape(pooled, [-1, slots, dim])
    first = paddle.sum(values[:, :, 0], axis=1, keepdim=True)
    vectors = values[:, :, 1:]
    total = paddle.sum(vectors, axis=1)
    # Sum over pairs of dot products = half of (square of sum - sum of squares).
    pairs = 0.5 * paddle.sum(total * total - paddle.sum(vectors * vectors, axis=1), axis=1, keepdim=True)
    deep = slot_dnn.logit(paddle.reshape(vectors, [-1, slots * (dim - 1)]), slots, dim - 1, layers, outputs)
    return deep + first + pairs
