"""The compiled lookups again, with every address checked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.timeout(600)
def test_no_compiled_lookup_leaves_its_memory(pytestconfig: pytest.Config) -> None:
    # Machine code with checks must not mix with that without: a cache of its own, kept between runs.
    cache = pytestconfig.rootpath / "build" / "numba-boundscheck"
    env = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache)}
    options = ["-q", "-k", "numba", "-p", "no:cacheprovider", *_plugin_options(pytestconfig)]

    checked = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(HERE / "test_table.py"), str(HERE / "test_loop.py")],
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
