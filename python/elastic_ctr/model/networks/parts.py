"""What several networks are made of. Every parameter is named: training and export build the same ones."""

from typing import Any, NamedTuple

from elastic_ctr.config.model import Model
from elastic_ctr.model.networks.inputs import Inputs


def tower(hidden: Any, model: Model) -> Any:
    """Fully connected layers with relu over [batch, n], then the output: -> [batch, 1].

    With `output: softmax` it has two classes, and softmax over two classes is the sigmoid of their difference.
    """
    import paddle
    from paddle import static

    for number, width in enumerate(model.layers):
        hidden = static.nn.fc(
            hidden,
            width,
            activation="relu",
            weight_attr=paddle.ParamAttr(name=f"fc{number}.w"),
            bias_attr=paddle.ParamAttr(name=f"fc{number}.b"),
        )
    two = model.output == "softmax"
    classes = static.nn.fc(
        hidden,
        2 if two else 1,
        weight_attr=paddle.ParamAttr(name="out.w"),
        bias_attr=paddle.ParamAttr(name="out.b"),
    )
    return classes[:, 1:2] - classes[:, 0:1] if two else classes


def with_numbers(hidden: Any, inputs: Inputs) -> Any:
    """[batch, n] and the numbers beside it: -> [batch, n + width]."""
    import paddle

    return hidden if inputs.numbers is None else paddle.concat([hidden, inputs.numbers], axis=1)


class Fields(NamedTuple):
    """The values of the slots, taken apart."""

    weights: Any  # [batch, slots]: first order
    vectors: Any  # [batch, slots, dim - 1]


def fields_of(inputs: Inputs, model: Model) -> Fields:
    import paddle

    values = paddle.reshape(inputs.pooled, [-1, inputs.slots, model.embedding_dim])
    return Fields(values[:, :, 0], values[:, :, 1:])


def first_order(fields: Fields, inputs: Inputs) -> Any:
    """The sum of the first-order weights, and w x of each number x: -> [batch, 1]. w begins at 0, as the weights of keys do."""
    import paddle
    from paddle.nn.initializer import Constant

    total = paddle.sum(fields.weights, axis=1, keepdim=True)
    if inputs.numbers is None:
        return total
    weights = paddle.create_parameter([inputs.width, 1], "float32", name="numbers.w", default_initializer=Constant(0.0))
    return total + paddle.matmul(inputs.numbers, weights)


def pairs(fields: Fields, inputs: Inputs, model: Model) -> Any:
    """The sum over all pairs of slots and numbers of the dot product of their vectors: -> [batch, 1].

    A number x has a vector v of the dense network and takes part as v x. The sum over pairs is half of (the square of the sum - the sum of
    the squares): Rendle, Factorization Machines, 2010, lemma 3.1.
    """
    import paddle
    from paddle.nn.initializer import Uniform

    total = paddle.sum(fields.vectors, axis=1)
    squares = paddle.sum(fields.vectors * fields.vectors, axis=1)
    if inputs.numbers is not None:
        factors = paddle.create_parameter(
            [inputs.width, model.embedding_dim - 1],
            "float32",
            name="numbers.v",
            default_initializer=Uniform(-0.01, 0.01),
        )
        total += paddle.matmul(inputs.numbers, factors)
        squares += paddle.matmul(inputs.numbers * inputs.numbers, factors * factors)
    return 0.5 * paddle.sum(total * total - squares, axis=1, keepdim=True)


def deep(fields: Fields, inputs: Inputs, model: Model) -> Any:
    """The tower over the vectors and the numbers: -> [batch, 1]."""
    import paddle

    flat = paddle.reshape(fields.vectors, [-1, inputs.slots * (model.embedding_dim - 1)])
    return tower(with_numbers(flat, inputs), model)


def bias() -> Any:
    """[1], from 0: for networks whose other parts have none."""
    import paddle
    from paddle.nn.initializer import Constant

    return paddle.create_parameter([1], "float32", name="bias", default_initializer=Constant(0.0))
