"""`python -m elastic_ctr.cube.server.precompile` beside a server that starts from the cache it has filled."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]

# Machine code by its function, what that closes over, and the types of the arguments.
COMPILED = """
import json, sys
from elastic_ctr.machine_code import compiled as machine_code
def compiled():
    return [
        [each.py_func.__qualname__, repr([cell.cell_contents for cell in each.py_func.__closure__ or ()]), str(signature)]
        for each in machine_code._compiled for signature in each.signatures
    ]
"""
WARM = """
from elastic_ctr.cube.server.precompile import warm
warm([9])
json.dump(compiled(), sys.stdout)
"""
SERVE = """
from pathlib import Path
import numpy as np
from cube.parts import write_table
from cube.peers import Peer
from cube.running import Running
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.server.loop import LookupLoop
from elastic_ctr.formats.value_kind import VALUE_KINDS
keys = np.arange(1, 100, dtype=np.uint64)
tables = [
    write_table(Path(sys.argv[1]) / kind, keys, dim=9, version=version, values=kind)
    for version, kind in enumerate(VALUE_KINDS, 1)
]
built = compiled()
running = Running(LookupLoop(counters.private(), 1000))
# Each by itself, then all of them, as while another kind is rolled out.
for held in [*([table] for table in tables), tables]:
    running.hold(*held)
    with Peer(running.port) as peer:
        assert not peer.ask(held[0].version, keys, 9).missing.any()
running.stop()
served = [each for each in compiled() if each not in built]
loops = {name for name, *_ in served}
compiled_anew = [
    each.py_func.__qualname__ for each in machine_code._compiled
    if each.py_func.__qualname__ in loops and sum(each.stats.cache_misses.values())
]
json.dump([served, compiled_anew], sys.stdout)
"""


def test_a_server_compiles_nothing_after_warming(tmp_path: Path) -> None:
    def said(code: str) -> Any:
        command = [
            sys.executable,
            "-c",
            f"{COMPILED}\nsys.path += [{str(TESTS)!r}, {str(TESTS / 'unit')!r}]\n{code}",
            str(tmp_path),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    warmed = said(WARM)
    served, compiled_anew = said(SERVE)

    assert {"serve_loop.<locals>.serve", "lookup_kernel.<locals>.lookup", "_place"} <= {name for name, *_ in warmed}
    assert "serve_loop.<locals>.serve" in {name for name, *_ in served}
    assert [each for each in served if each not in warmed] == []
    assert compiled_anew == []
