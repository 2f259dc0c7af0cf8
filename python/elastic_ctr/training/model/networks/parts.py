"""Parts that several networks share. Every parameter has a name, so training and export build the same ones."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from elastic_ctr.config.networks import Layered


class Inputs(NamedTuple):
    """A batch as Paddle's variables, f32. A slot's `dim` values are the first-order weight (column 0) and a vector of dim - 1."""

    pooled: Any  # [batch, slots * dim]
    numbers: Any  # [batch, width], or None where there is none
    slots: int
    width: int  # of numbers
    dim: int
    classes: int = 1  # of the output layer; 2 are softmax
    training: bool = False  # dropout is on


def connected(hidden: Any, width: int, name: str, activation: str | None = None) -> Any:
    """A fully connected layer with a bias: [batch, n] -> [batch, width]."""
    import paddle
    from paddle import static

    return static.nn.fc(
        hidden,
        width,
        activation=activation,
        weight_attr=paddle.ParamAttr(name=f"{name}.w"),
        bias_attr=paddle.ParamAttr(name=f"{name}.b"),
    )


def hidden_layers(
    hidden: Any, inputs: Inputs, settings: Layered, widths: Sequence[int] | None = None, prefix: str = "fc"
) -> Any:
    """Fully connected layers with relu, of `settings.layers` unless `widths` are given: [batch, n] -> [batch, last width]."""
    import paddle

    for number, width in enumerate(settings.layers if widths is None else widths):
        name = f"{prefix}{number}"
        if settings.layer_norm:
            hidden = paddle.nn.functional.relu(layer_normed(connected(hidden, width, name), width, f"{name}.norm"))
        else:
            hidden = connected(hidden, width, name, "relu")
        if settings.dropout:
            # In training, dropout scales the kept values up, so predictions need no scaling.
            hidden = paddle.nn.functional.dropout(hidden, settings.dropout, training=inputs.training)
    return hidden


def layer_normed(hidden: Any, width: int, name: str) -> Any:
    """(h - mean of the row) / deviation of the row * w + b: [batch, width], the same. Ba et al., Layer Normalization, 2016."""
    import paddle

    weight = parameter([width], f"{name}.w", 1.0)
    return paddle.nn.functional.layer_norm(hidden, width, weight=weight, bias=parameter([width], f"{name}.b", 0.0))


def output(hidden: Any, inputs: Inputs) -> Any:
    """The output layer: [batch, n] -> [batch, 1]."""
    return logit_of_classes(connected(hidden, inputs.classes, "out"))


def logit_of_classes(classes: Any) -> Any:
    """[batch, 1 or 2] -> [batch, 1]: softmax over two classes is the sigmoid of their difference."""
    return classes if classes.shape[1] == 1 else classes[:, 1:2] - classes[:, 0:1]


def tower(hidden: Any, inputs: Inputs, settings: Layered) -> Any:
    """Fully connected layers and the output layer: [batch, n] -> [batch, 1]."""
    return output(hidden_layers(hidden, inputs, settings), inputs)


def parameter(shape: list[int], name: str, value: float) -> Any:
    """Return a parameter whose elements all begin with this value."""
    import paddle
    from paddle.nn.initializer import Constant

    return paddle.create_parameter(shape, "float32", name=name, default_initializer=Constant(value))


def matrix(shape: list[int], name: str) -> Any:
    """Return a parameter […, n, m] that begins uniform in ± √(6 / (n + m)) (Glorot and Bengio, 2010)."""
    import paddle
    from paddle.nn.initializer import XavierUniform

    initial = XavierUniform(fan_in=shape[-2], fan_out=shape[-1])
    return paddle.create_parameter(shape, "float32", name=name, default_initializer=initial)


def with_numbers(hidden: Any, inputs: Inputs) -> Any:
    """Append the numbers: [batch, n] -> [batch, n + width]."""
    import paddle

    return hidden if inputs.numbers is None else paddle.concat([hidden, inputs.numbers], axis=1)


class Fields(NamedTuple):
    """The pooled values of the slots, split into weights and vectors."""

    weights: Any  # [batch, slots]: first order
    vectors: Any  # [batch, slots, dim - 1]


def fields_of(inputs: Inputs) -> Fields:
    import paddle

    values = paddle.reshape(inputs.pooled, [-1, inputs.slots, inputs.dim])
    return Fields(values[:, :, 0], values[:, :, 1:])


def first_order(fields: Fields, inputs: Inputs) -> Any:
    """The sum of the first-order weights, and w x of each number x: -> [batch, 1]. w begins at 0, as the weights of keys do."""
    import paddle

    total = paddle.sum(fields.weights, axis=1, keepdim=True)
    if inputs.numbers is None:
        return total
    return total + paddle.matmul(inputs.numbers, parameter([inputs.width, 1], "numbers.w", 0.0))


def numbers_vectors(inputs: Inputs) -> Any:
    """Return a parameter of the dense network with a vector v for each number: [width, dim - 1]. A number x interacts as v x."""
    import paddle
    from paddle.nn.initializer import Uniform

    return paddle.create_parameter(
        [inputs.width, inputs.dim - 1], "float32", name="numbers.v", default_initializer=Uniform(-0.01, 0.01)
    )


def pairs(fields: Fields, inputs: Inputs) -> Any:
    """The sum over all pairs of slots and numbers of the dot product of their vectors: -> [batch, 1].

    The sum over pairs is half of (the square of the sum - the sum of the squares): Rendle, Factorization Machines, 2010, lemma 3.1.
    """
    import paddle

    total = paddle.sum(fields.vectors, axis=1)
    squares = paddle.sum(fields.vectors * fields.vectors, axis=1)
    if inputs.numbers is not None:
        factors = numbers_vectors(inputs)
        total += paddle.matmul(inputs.numbers, factors)
        squares += paddle.matmul(inputs.numbers * inputs.numbers, factors * factors)
    return 0.5 * paddle.sum(total * total - squares, axis=1, keepdim=True)


def all_vectors(fields: Fields, inputs: Inputs) -> Any:
    """Return the vectors of the slots and v x for each number x: [batch, slots + width, dim - 1]."""
    import paddle

    if inputs.numbers is None:
        return fields.vectors
    scaled = paddle.unsqueeze(inputs.numbers, 2) * paddle.unsqueeze(numbers_vectors(inputs), 0)
    return paddle.concat([fields.vectors, scaled], axis=1)


def flat(fields: Fields, inputs: Inputs) -> Any:
    """Return the concatenated vectors of the slots and the numbers: [batch, slots * (dim - 1) + width]."""
    import paddle

    return with_numbers(paddle.reshape(fields.vectors, [-1, inputs.slots * (inputs.dim - 1)]), inputs)


def bias() -> Any:
    """Return a bias [1] that begins at 0, for networks whose other parts have none."""
    return parameter([1], "bias", 0.0)
