"""Which files decide whether machine code is run with bounds checks again, and the folder where that code is kept."""

import re
import sys
from pathlib import Path

import pytest

from contract.compiled_modules import UNIT_TESTS, digest, files_of
from fuzz.__main__ import NAMES
from fuzz.checked_code import checked_code

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("run", "builds"),
    [
        ("dictionary", "cube/dictionary/table.py"),
        ("builder", "cube/builder/part.py"),
        ("formats", "formats/readers/text.py"),
        ("features", "features/transforms/transformer.py"),
    ],
)
def test_a_file_that_builds_the_rows_of_a_kernel_belongs_to_its_run(run: str, builds: str) -> None:
    assert ROOT / "python" / "elastic_ctr" / builds in files_of(run)


@pytest.mark.parametrize("run", [*UNIT_TESTS, *NAMES])
def test_a_source_that_starts_a_run_belongs_to_it(run: str) -> None:
    starts = ("contract/test_bounds_checking.py", "fuzz/__main__.py", "fuzz/targets.py")

    assert {ROOT / "tests" / name for name in starts} <= files_of(run)
    assert all(file.is_file() for file in files_of(run))


@pytest.mark.parametrize(
    ("run", "parser"),
    [
        ("cube-server", "cube/wire.py"),
        ("serving-http", "serving/frontends/native_http.py"),
        ("values-file", "config/values_file.py"),
        ("rotations", "sources/streams/followed_file.py"),
    ],
)
def test_the_parser_that_a_fuzzer_feeds_belongs_to_its_run(run: str, parser: str) -> None:
    assert ROOT / "python" / "elastic_ctr" / parser in files_of(run)


@pytest.mark.parametrize("run", ["dictionary", "cube-server", "json-rows"])
def test_the_lock_of_a_package_that_a_run_imports_belongs_to_it_and_no_other(
    run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest(run)
    read = Path.read_text

    def with_another(package: str) -> str:
        def text(file: Path) -> str:
            return re.sub(rf"(?m)^{package}==", f"{package}==9.", read(file)) if file.suffix == ".txt" else read(file)

        monkeypatch.setattr(Path, "read_text", text)
        return digest(run)

    assert with_another("obstore") == before
    assert with_another("numba") != before


def test_another_python_has_another_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest("dictionary")
    monkeypatch.setattr(sys, "version_info", (3, 99, 0, "final", 0))

    assert digest("dictionary") != before


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
