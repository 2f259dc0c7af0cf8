"""autoint: self-attention between slots."""

from typing import Any

from elastic_ctr.config.networks import AutoInt
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


def autoint(inputs: Inputs, settings: AutoInt) -> Any:
    """The logit is Σ w + out([the rows of E L, deep([v 1, …, v n, numbers])]): -> [batch, 1].

    E 0 has the vectors of slots and numbers as its rows; E l+1 = relu([head 1, …, head H] + E l R) with
    head = softmax((E l Q) (E l K)ᵀ) (E l V). Song et al., AutoInt: Automatic Feature Interaction Learning via Self-Attentive Neural
    Networks, 2019; products are not scaled, as there. The paper has no first order; here the first-order weights of keys are added to
    the logit, else nothing would use them.
    """
    import paddle

    fields = fields_of(inputs)
    rows = all_vectors(fields, inputs)
    for number in range(settings.attention_layers):
        rows = _attended(rows, settings.heads, settings.head_dim, f"attention{number}")
    both = paddle.reshape(rows, [-1, rows.shape[1] * rows.shape[2]])
    if settings.layers:
        both = paddle.concat([both, hidden_layers(flat(fields, inputs), inputs, settings)], axis=1)
    return first_order(fields, inputs) + output(both, inputs)


def _attended(rows: Any, heads: int, head_dim: int, name: str) -> Any:
    """[batch, fields, n] -> [batch, fields, heads * head_dim]."""
    import paddle

    _, fields, width = rows.shape

    def projected(letter: str) -> Any:
        found = paddle.matmul(rows, matrix([width, heads * head_dim], f"{name}.{letter}"))
        return paddle.transpose(paddle.reshape(found, [-1, fields, heads, head_dim]), [0, 2, 1, 3])

    likeness = paddle.matmul(projected("q"), projected("k"), transpose_y=True)
    mixed = paddle.matmul(paddle.nn.functional.softmax(likeness, axis=-1), projected("v"))
    together = paddle.reshape(paddle.transpose(mixed, [0, 2, 1, 3]), [-1, fields, heads * head_dim])
    residual = paddle.matmul(rows, matrix([width, heads * head_dim], f"{name}.r"))
    return paddle.nn.functional.relu(together + residual)
