"""What is compiled again, with every address checked."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cube.parts import write_table
from elastic_ctr.cube.dictionary import kernel
from elastic_ctr.cube.dictionary import table as tables
from elastic_ctr.cube.dictionary.format import stride_for
from elastic_ctr.machine_code.compiled import bounds_checked

CUBE = Path(__file__).parents[1]
_COMPILED = (
    "dictionary/test_kernel", "dictionary/test_table", "dictionary/test_perfect_hash", "server/test_loop",
    "builder/test_order", "builder/test_rows", "builder/test_intake", "builder/test_part",
)  # fmt: skip


@pytest.mark.skipif(not bounds_checked(), reason="only machine code with checks finds this out")
def test_checked_numba_code_refuses_a_place_outside_the_output(tmp_path: Path) -> None:
    keys = np.arange(1, 5, dtype=np.uint64)
    table = write_table(tmp_path, keys)
    lookup = kernel.lookup_kernel(4, stride_for(4), accumulate=False)

    with pytest.raises(IndexError, match="outside the output"):
        lookup(
            table.rows, table.reciprocal, False, keys, 4, np.zeros(63, np.uint8), np.arange(4) * 16,
            np.zeros(4, np.uint8), np.zeros(kernel.SCRATCH, np.uint64),
        )  # fmt: skip


def test_a_table_gives_the_kernel_the_scratch_that_it_needs() -> None:
    assert tables._SCRATCH == kernel.SCRATCH


@pytest.mark.timeout(600)
def test_no_compiled_code_leaves_its_memory(pytestconfig: pytest.Config) -> None:
    # Machine code with checks must not mix with that without: a cache of its own, kept between runs.
    cache = pytestconfig.rootpath / "build" / "numba-boundscheck"
    env = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache)}
    options = [
        "-q",
        "-k",
        "numba or test_perfect_hash or builder",
        "-p",
        "no:cacheprovider",
        *_plugin_options(pytestconfig),
    ]

    checked = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(str(CUBE / f"{name}.py") for name in _COMPILED)],
        env=env, cwd=pytestconfig.rootpath, capture_output=True, text=True, check=False,
    )  # fmt: skip

    assert checked.returncode == 0, checked.stdout[-4000:] + checked.stderr[-2000:]
    assert " passed" in checked.stdout


def _plugin_options(config: pytest.Config) -> list[str]:
    """What the run around this one was told about plugins and settings."""
    arguments = list(config.invocation_params.args)
    return [
        str(word)
        for at, argument in enumerate(arguments)
        if argument in {"-p", "-o"} and at + 1 < len(arguments)
        for word in (argument, arguments[at + 1])
    ]
