import pytest

from elastic_ctr.serving.batching.predictor import mkl_is_slow


@pytest.mark.parametrize(
    ("vendor", "flags", "slow"),
    [
        ("AuthenticAMD", "fpu sse2 avx avx2", True),
        ("HygonGenuine", "avx2", True),
        ("AuthenticAMD", "fpu sse2 avx avx2x", False),
        ("GenuineIntel", "fpu avx2", False),
    ],
)
def test_mathematics_is_told_of_a_fast_cpu_that_it_would_not_believe(vendor: str, flags: str, slow: bool) -> None:
    assert mkl_is_slow({"vendor_id": vendor, "flags": flags}) is slow


def test_a_cpu_that_says_nothing_is_left_alone() -> None:
    assert not mkl_is_slow({})
