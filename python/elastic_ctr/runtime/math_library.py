"""The choice of MKL's code path. MKL reads its settings from the environment when Paddle loads it.

The MKL of Paddle 2.6 takes the path of the oldest CPUs on every CPU that is not Intel's. It still heeds MKL_DEBUG_CPU_TYPE: 5 is
an Intel with AVX2, 7 one with AVX-512. Measured in docs/decisions/0007-serving-frontends.md.
"""

import os
from collections.abc import Mapping
from pathlib import Path

VARIABLE = "MKL_DEBUG_CPU_TYPE"
_AVX2, _AVX512 = "5", "7"
# MKL's path for AVX-512 uses the extensions of the first Xeons that had it.
_SKYLAKE = frozenset({"avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl"})


def choose_code_path() -> None:
    """Choose the fastest path that the CPU supports, unless the environment names one. Call this before Paddle is imported."""
    if path := code_path_of(_cpu()):
        os.environ.setdefault(VARIABLE, path)


def code_path_of(cpu: Mapping[str, str]) -> str | None:
    """Return the variable's value for a CPU (a block of /proc/cpuinfo), or None if MKL itself chooses well."""
    flags = frozenset(cpu.get("flags", "").split())
    if cpu.get("vendor_id") not in {"AuthenticAMD", "HygonGenuine"} or "avx2" not in flags:
        return None
    return _AVX512 if flags >= _SKYLAKE else _AVX2


def _cpu() -> dict[str, str]:
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    return {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in first.splitlines())}
