import os

import pytest

from elastic_ctr.runtime.math_library import VARIABLE, choose_code_path, code_path_of

SKYLAKE = "fpu avx2 avx512f avx512cd avx512bw avx512dq avx512vl"


@pytest.mark.parametrize(
    ("vendor", "flags", "path"),
    [
        ("AuthenticAMD", "fpu sse2 avx avx2", "5"),
        ("HygonGenuine", "avx2", "5"),
        ("AuthenticAMD", f"{SKYLAKE} avx512_bf16", "7"),
        ("AuthenticAMD", SKYLAKE.replace("avx512vl", ""), "5"),
        ("AuthenticAMD", "fpu sse2 avx avx2x", None),
        ("GenuineIntel", SKYLAKE, None),
    ],
)
def test_mathematics_is_told_of_a_fast_cpu_that_it_would_not_believe(vendor: str, flags: str, path: str | None) -> None:
    assert code_path_of({"vendor_id": vendor, "flags": flags}) == path


def test_a_cpu_that_says_nothing_is_left_alone() -> None:
    assert code_path_of({}) is None


def test_the_environment_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "4")
    choose_code_path()
    assert os.environ[VARIABLE] == "4"
