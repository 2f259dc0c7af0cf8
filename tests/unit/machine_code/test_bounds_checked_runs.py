"""The folder where machine code with bounds checks is kept."""

from pathlib import Path

from fuzz.checked_code import checked_code


def test_machine_code_of_other_sources_goes_and_that_of_the_same_sources_stays(tmp_path: Path) -> None:
    source = tmp_path / "python" / "elastic_ctr" / "kernel.py"
    source.parent.mkdir(parents=True)
    source.write_text("one")
    cache = tmp_path / "build" / "numba-boundscheck"
    # As it was kept before folders were named after sources.
    (cache / "dictionary_e8ce8f").mkdir(parents=True)

    first = checked_code(tmp_path)
    (first / "kernel.nbi").touch()

    assert checked_code(tmp_path) == first
    assert [*cache.rglob("*")] == [first, first / "kernel.nbi"]

    source.write_text("two")
    second = checked_code(tmp_path)

    assert [*cache.rglob("*")] == [second]
