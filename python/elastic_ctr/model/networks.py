"""The networks by name. A network is one function: pooled slot vectors in, logit out."""

from collections.abc import Callable
from typing import Any

from elastic_ctr.config.model import Model


def slot_dnn(pooled: Any, slots: int, dim: int, layers: tuple[int, ...], outputs: int) -> Any:  # noqa: ARG001
    """Pooled slots side by side, fully connected layers with relu: [batch, slots * dim] -> [batch, outputs].

    Every parameter is named: training and export build the same ones.
    """
    import paddle
    from paddle import static

    hidden = pooled
    for number, width in enumerate(layers):
        hidden = static.nn.fc(
            hidden,
            width,
            activation="relu",
            weight_attr=paddle.ParamAttr(name=f"fc{number}.w"),
            bias_attr=paddle.ParamAttr(name=f"fc{number}.b"),
        )
    return static.nn.fc(
        hidden, outputs, weight_attr=paddle.ParamAttr(name="out.w"), bias_attr=paddle.ParamAttr(name="out.b")
    )


def deepfm(pooled: Any, slots: int, dim: int, layers: tuple[int, ...], outputs: int) -> Any:
    """First-order weights (column 0 of a key's values), pairwise products of slot vectors (the other columns), and a deep tower
    over the vectors. Guo et al., DeepFM: A Factorization-Machine based Neural Network for CTR Prediction, 2017.
    """
    import paddle

    values = paddle.reshape(pooled, [-1, slots, dim])
    first = paddle.sum(values[:, :, 0], axis=1, keepdim=True)
    vectors = values[:, :, 1:]
    total = paddle.sum(vectors, axis=1)
    # Sum over pairs of dot products = half of (square of sum - sum of squares).
    pairs = 0.5 * paddle.sum(total * total - paddle.sum(vectors * vectors, axis=1), axis=1, keepdim=True)
    deep = slot_dnn(paddle.reshape(vectors, [-1, slots * (dim - 1)]), slots, dim - 1, layers, outputs)
    return deep + first + pairs


NETWORKS: dict[str, Callable[[Any, int, int, tuple[int, ...], int], Any]] = {
    "slot-dnn": slot_dnn,
    "deepfm": deepfm,
}


def logit_of(model: Model, slots: int, pooled: Any) -> Any:
    """[batch, slots * dim] -> [batch, 1]. Built once for training and once for export, with the same names.

    softmax over two classes is the sigmoid of their difference.
    """
    two = model.output == "softmax"
    outputs = NETWORKS[model.network](pooled, slots, model.embedding_dim, model.layers, 2 if two else 1)
    return outputs[:, 1:2] - outputs[:, 0:1] if two else outputs
