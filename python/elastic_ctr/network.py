"""For a network of your own (`model.network.source`): what its function gets, and the pieces of the built-in networks.

    from elastic_ctr.network import fields_of, first_order, flat, tower

    def logit(inputs, settings):
        fields = fields_of(inputs)
        return first_order(fields, inputs) + tower(flat(fields, inputs), inputs, settings["layers"])

This module is stable: what it exports keeps its meaning (docs/models.md).
"""

from collections.abc import Sequence
from typing import Any

from elastic_ctr.config.networks import Layered
from elastic_ctr.training.model.networks import parts
from elastic_ctr.training.model.networks.parts import (
    Fields,
    Inputs,
    all_vectors,
    bias,
    connected,
    fields_of,
    first_order,
    flat,
    layer_normed,
    matrix,
    pairs,
    parameter,
    with_numbers,
)

__all__ = [
    "Fields",
    "Inputs",
    "all_vectors",
    "bias",
    "connected",
    "fields_of",
    "first_order",
    "flat",
    "hidden_layers",
    "layer_normed",
    "matrix",
    "pairs",
    "parameter",
    "tower",
    "with_numbers",
]


def hidden_layers(
    hidden: Any,
    inputs: Inputs,
    layers: Sequence[int],
    *,
    dropout: float = 0.0,
    layer_norm: bool = False,
    name: str = "fc",
) -> Any:
    """Fully connected layers of these widths with relu: [batch, n] -> [batch, last width]. Two of them need two names."""
    settings = Layered(layers=tuple(layers), dropout=dropout, layer_norm=layer_norm)
    return parts.hidden_layers(hidden, inputs, settings, prefix=name)


def tower(
    hidden: Any,
    inputs: Inputs,
    layers: Sequence[int],
    *,
    dropout: float = 0.0,
    layer_norm: bool = False,
    name: str = "fc",
) -> Any:
    """Fully connected layers and one output without activation: [batch, n] -> [batch, 1]. Two of them need two names."""
    hidden = hidden_layers(hidden, inputs, layers, dropout=dropout, layer_norm=layer_norm, name=name)
    return connected(hidden, 1, f"{name}.out")
