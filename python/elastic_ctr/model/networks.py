"""The networks by name. A network is one function: pooled slot vectors and numbers in, logit out."""

from collections.abc import Callable
from typing import Any, NamedTuple

from elastic_ctr.config.model import Model


class Inputs(NamedTuple):
    """A batch as a network gets it: Paddle's variables."""

    pooled: Any  # [batch, slots * dim]
    numbers: Any  # [batch, width], or None where there is none
    slots: int
    width: int  # of numbers


def slot_dnn(inputs: Inputs, dim: int, layers: tuple[int, ...], outputs: int) -> Any:  # noqa: ARG001 (the deep part needs no dim)
    """Pooled slots and numbers side by side, fully connected layers with relu: -> [batch, outputs].

    Every parameter is named: training and export build the same ones.
    """
    import paddle
    from paddle import static

    hidden = inputs.pooled if inputs.numbers is None else paddle.concat([inputs.pooled, inputs.numbers], axis=1)
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


def deepfm(inputs: Inputs, dim: int, layers: tuple[int, ...], outputs: int) -> Any:
    """First-order weights (column 0 of a key's values), pairwise products of vectors (the other columns), and a deep tower over the
    vectors of slots and the numbers. A number x has a weight w and a vector v of the dense network: its part is w x and v x, as that
    of a continuous field. Guo et al., DeepFM: A Factorization-Machine based Neural Network for CTR Prediction, 2017.
    """
    import paddle

    values = paddle.reshape(inputs.pooled, [-1, inputs.slots, dim])
    first = paddle.sum(values[:, :, 0], axis=1, keepdim=True)
    vectors = values[:, :, 1:]
    total = paddle.sum(vectors, axis=1)
    squares = paddle.sum(vectors * vectors, axis=1)
    if inputs.numbers is not None:
        weights, of_numbers = _factors(inputs.width, dim)
        first += paddle.matmul(inputs.numbers, weights)
        total += paddle.matmul(inputs.numbers, of_numbers)
        squares += paddle.matmul(inputs.numbers * inputs.numbers, of_numbers * of_numbers)
    # Sum over pairs of dot products = half of (square of sum - sum of squares).
    pairs = 0.5 * paddle.sum(total * total - squares, axis=1, keepdim=True)
    flat = paddle.reshape(vectors, [-1, inputs.slots * (dim - 1)])
    deep = slot_dnn(inputs._replace(pooled=flat), dim - 1, layers, outputs)
    return deep + first + pairs


def _factors(count: int, dim: int) -> tuple[Any, Any]:
    """The weights [count, 1], which begin at 0 as those of keys do, and the vectors [count, dim - 1] of numbers."""
    import paddle
    from paddle.nn.initializer import Constant, Uniform

    weights = paddle.create_parameter([count, 1], "float32", name="numbers.w", default_initializer=Constant(0.0))
    vectors = paddle.create_parameter(
        [count, dim - 1], "float32", name="numbers.v", default_initializer=Uniform(-0.01, 0.01)
    )
    return weights, vectors


NETWORKS: dict[str, Callable[[Inputs, int, tuple[int, ...], int], Any]] = {
    "slot-dnn": slot_dnn,
    "deepfm": deepfm,
}


def logit_of(model: Model, inputs: Inputs) -> Any:
    """The logit of each row, [batch, 1]. Built once for training and once for export, with the same names.

    softmax over two classes is the sigmoid of their difference.
    """
    two = model.output == "softmax"
    outputs = NETWORKS[model.network](inputs, model.embedding_dim, model.layers, 2 if two else 1)
    return outputs[:, 1:2] - outputs[:, 0:1] if two else outputs
