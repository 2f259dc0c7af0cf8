"""A version that is loaded in a worker, and the protocols of the network and of cube that it uses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.keys import Keys
from elastic_ctr.serving.batching.pooling import NOT_AVERAGED, Floats
from elastic_ctr.serving.batching.schema import Schema


class Network(Protocol):
    """A dense network, see `predictor.DenseNetwork`."""

    row_seconds: float

    def predict(self, pooled: Floats, numbers: Floats | None, /) -> Floats: ...

    def close(self) -> None: ...


class Cube(Protocol):
    """The part of `cube.client.CubeClient` that the batcher uses."""

    async def lookup(self, version: int, keys: Keys, /) -> tuple[Floats, npt.NDArray[np.bool_]]: ...


@dataclass(frozen=True)
class ModelVersion:
    """A loaded version: its network, and facts of its manifest.

    `release` is called on Paddle's thread once no batch uses the network; if it is None, the network is closed.
    """

    version: int
    schema: Schema
    sparse_dim: int | None
    dim: int
    network: Network
    cube: Cube
    averaged: npt.NDArray[np.bool_] = field(default_factory=lambda: NOT_AVERAGED)
    release: Callable[[], object] | None = None
