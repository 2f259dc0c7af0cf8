import pytest

from elastic_ctr.machine_code.compiled import compiled, numba_wanted


def test_machine_code_says_what_the_function_says() -> None:
    def doubled(number: int) -> int:
        return 2 * number

    assert compiled(doubled)(21) == 42


def test_numpy_can_be_asked_for_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    assert numba_wanted()

    monkeypatch.setenv("ELASTIC_CTR_LOOKUP", "numpy")

    assert not numba_wanted()
