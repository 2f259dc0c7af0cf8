"""Which lookup loop a worker runs."""

import logging

from elastic_ctr.cube.server.counters import Counts
from elastic_ctr.cube.server.loop import AWAKE_US, MAX_CONNECTIONS, LookupLoop
from elastic_ctr.cube.server.python_loop import PythonLoop
from elastic_ctr.machine_code.compiled import anew_if_stale, numba_wanted

_log = logging.getLogger(__name__)


def make_loop(
    counts: Counts, max_keys: int, max_connections: int = MAX_CONNECTIONS, awake_us: int = AWAKE_US
) -> LookupLoop:
    """The compiled loop where it can be compiled, else the one in Python (`ELASTIC_CTR_LOOKUP=numpy` asks for it)."""
    if numba_wanted():
        try:
            from elastic_ctr.cube.server.compiled_loop import CompiledLoop

            return anew_if_stale(lambda: CompiledLoop(counts, max_keys, max_connections, awake_us))
        except Exception:  # noqa: BLE001 - whatever the compiler says, there is another way
            _log.exception("the compiled lookup loop cannot be used here; lookups are answered by the slower one")
    return PythonLoop(counts, max_keys, max_connections)
