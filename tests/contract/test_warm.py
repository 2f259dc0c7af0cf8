import os
import subprocess
import sys
from pathlib import Path


def test_warming_fills_the_cache_that_a_server_starts_from(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "elastic_ctr.cube.server.precompile", "9"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        check=True,
    )

    compiled = {path.name.split("-")[0] for path in tmp_path.rglob("*.nbc")}
    assert {"rounds.serve_loop.locals.serve", "kernel.lookup_kernel.locals.lookup", "perfect_hash._place"} <= {
        name.replace("<", "").replace(">", "") for name in compiled
    }
