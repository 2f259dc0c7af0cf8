"""The inputs of a network."""

from typing import Any, NamedTuple


class Inputs(NamedTuple):
    """A batch as Paddle's variables, f32. A slot's `dim` values are the first-order weight (column 0) and a vector of dim - 1."""

    pooled: Any  # [batch, slots * dim]
    numbers: Any  # [batch, width], or None where there is none
    slots: int
    width: int  # of numbers
    dim: int
    classes: int = 1  # of the output layer; 2 are softmax
    training: bool = False  # dropout is on
