"""A user's own lookup in Redis: redis-py with hiredis, one MGET, numpy behind it."""
# mypy: disable-error-code="import-not-found"

import numpy as np
import redis
from numpy.typing import NDArray


def uses_hiredis() -> str:
    """The version of the parser in C, which redis-py takes where it is installed."""
    import hiredis

    return str(hiredis.__version__)


class RedisCaller:
    """Blocking, one connection."""

    def __init__(self, port: int, dim: int) -> None:
        self._client = redis.Redis(host="127.0.0.1", port=port)
        self._dim = dim

    def lookup(self, keys: NDArray[np.uint64]) -> NDArray[np.float32]:
        """Keys u64[n], all known, to f32[n, dim]."""
        raw = keys.tobytes()
        found = self._client.mget([raw[at : at + 8] for at in range(0, len(raw), 8)])
        return np.frombuffer(b"".join(found), np.float32).reshape(-1, self._dim)

    def close(self) -> None:
        self._client.close()
