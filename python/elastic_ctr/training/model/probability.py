"""The range of float32 probabilities that are not 0 or 1."""

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

LEAST = np.finfo(np.float32).tiny
"""The least float32 of full precision, 1.2e-38: programs may read smaller ones as 0."""
GREATEST = np.nextafter(np.float32(1), np.float32(0))
"""The float32 before 1, 0.99999994."""


def inside(probabilities: Floats) -> Floats:
    """Return probabilities clipped to [LEAST, GREATEST], so that logit and logloss are finite; NaN stays NaN.

    In float32 the sigmoid of a logit above 17 is 1, and below -103 it is 0.
    """
    found: Floats = np.minimum(np.maximum(probabilities, LEAST), GREATEST)
    return found


def complement(probability: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return 1 - probability in float64, which is always below 1."""
    found: npt.NDArray[np.float64] = np.minimum(1.0 - probability, np.nextafter(1.0, 0.0))
    return found
