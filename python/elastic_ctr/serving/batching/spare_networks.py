"""Reuse of networks: a version with the same program gets a network that is no longer needed, with its own parameters.

Paddle takes 15 ms to load and optimise a program, during which no batch is answered. The versions of a training differ only in their
parameters, whose exchange takes 0.1 ms. A stream publishes up to two versions a second.
"""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

import numpy as np

from elastic_ctr.serving.batching.parameters import OtherParameters, write_parameters
from elastic_ctr.serving.batching.predictor import MODEL_FILE, PARAMETERS_FILE, DenseNetwork, NetworkUnusable

log = logging.getLogger(__name__)

# One network is being loaded while another still answers.
_MOST = 2
_ROWS = 64
_SCALE = 0.2
_SPREAD = 1e-3


class SpareNetworks:
    """Loads networks and keeps a few that are no longer needed. All calls are on Paddle's thread."""

    def __init__(self) -> None:
        self._spare: list[DenseNetwork] = []
        # The program of the spare networks, and whether its parameters can be exchanged: None until that is first needed.
        self._program = b""
        self._renewable: bool | None = None

    def load(self, folder: Path, width: int, numbers: int = 0) -> DenseNetwork:
        """Return the network of a version, see DenseNetwork. Raises NetworkUnusable."""
        network = self._renewed(folder, width, numbers)
        return network or DenseNetwork(folder, width, numbers)

    def put(self, network: DenseNetwork) -> None:
        """Take back a network that no batch uses."""
        if network.program != self._program:
            self.close()
            self._program, self._renewable = network.program, None
        if self._renewable is False or len(self._spare) == _MOST:
            network.close()
        else:
            self._spare.append(network)

    def close(self) -> None:
        """Close the spare networks."""
        for each in self._spare:
            each.close()
        self._spare = []

    def _renewed(self, folder: Path, width: int, numbers: int) -> DenseNetwork | None:
        if not self._spare or (width, numbers) != (self._spare[0].width, self._spare[0].numbers):
            return None
        try:
            if (folder / MODEL_FILE).read_bytes() != self._program:
                return None
            if self._renewable is None:
                self._renewable = can_be_renewed(self._spare[0])
            if not self._renewable:
                self.close()
                return None
            self._spare[-1].renew(folder)
        except (OtherParameters, OSError):
            # The caller loads a new network, which raises the error of the files.
            return None
        return self._spare.pop()


def can_be_renewed(network: DenseNetwork) -> bool:
    """True if a network with exchanged parameters answers like a newly loaded one. It keeps the random parameters of this test.

    Paddle optimises a program with its present parameters and may keep results of them: `fc_fuse_pass` multiplies by a padded copy of a
    matrix whose height and width are multiples of 128, under a name that cannot be known.
    """
    drawn = np.random.default_rng(1)
    try:
        values = {name: drawn.normal(0, _SCALE, shape).astype(np.float32) for name, shape in network.shapes()}
        rows = [drawn.normal(0, 1, (_ROWS, each)).astype(np.float32) for each in (network.width, network.numbers)]
        before = network.predict(*rows)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            (folder / MODEL_FILE).write_bytes(network.program)
            (folder / PARAMETERS_FILE).write_bytes(write_parameters(values))
            network.renew(folder)
            loaded = DenseNetwork(folder, network.width, network.numbers)
        try:
            expected = loaded.predict(*rows)
        finally:
            loaded.close()
        renewed = network.predict(*rows)
    except (OtherParameters, NetworkUnusable, OSError) as failed:
        log.info("each version's network is loaded anew: %s", failed)
        return False
    # The test proves nothing if all rows have one score, or if the parameters do not change the scores.
    telling = float(np.ptp(expected)) > _SPREAD and float(np.max(np.abs(before - expected))) > _SPREAD
    same = bool(np.allclose(renewed, expected, rtol=1e-5, atol=1e-7))
    if not (telling and same):
        log.info("each version's network is loaded anew: its parameters cannot be exchanged")
    return telling and same
