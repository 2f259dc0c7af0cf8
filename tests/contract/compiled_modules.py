"""Which runs of tests/contract/test_bounds_checking.py have passed with the machine code and the parsers as they are.

python -m contract.compiled_modules          # in tests/: prints the digest of each run
python -m contract.compiled_modules DIGESTS  # records that these runs have passed, which `make nightly` does
"""

import ast
import hashlib
import json
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from fuzz.__main__ import NAMES

_ROOT = Path(__file__).parents[2]
_RECORD = Path(__file__).with_name("bounds_checked.json")
# Where a run's imports are looked for, as Python and pytest do.
_PATH = (_ROOT / "python", _ROOT / "tests", _ROOT / "tests" / "unit")
_PRODUCT = _ROOT / "python" / "elastic_ctr"
# Product files of these rooms count for each run: machine code, and the tables, rows and transforms in Python that it follows.
_ROOMS = frozenset({"cube", "features", "formats", "machine_code"})
# How a run is started, and with what.
_RUNNERS = frozenset(
    _ROOT / "tests" / name
    for name in ("contract/test_bounds_checking.py", "fuzz/__main__.py", "fuzz/checked_code.py", "fuzz/targets.py")
)
# Packages whose modules have another name.
_PACKAGES = {"google": "protobuf", "yaml": "pyyaml"}
# Unit tests of compiled code, by run.
UNIT_TESTS = {
    "dictionary": tuple(f"cube/dictionary/test_{name}" for name in ("kernel", "table", "perfect_hash", "value_kinds")),
    "server": ("cube/server/test_loop",),
    "builder": tuple(f"cube/builder/test_{name}" for name in ("hash_sort", "rows", "quantise", "input", "part")),
    "formats": tuple(
        f"formats/{name}" for name in (
            "test_convert", "test_blocks", "test_decimals", "test_json_scan", "readers/test_text", "readers/test_jsonl",
        )
    ),
    "features": (
        "features/statistics/test_collector", "features/transforms/test_formulas", "features/transforms/test_transformer",
    ),
}  # fmt: skip


@cache
def _program(file: Path) -> tuple[str, frozenset[Path], frozenset[str]]:
    """The digest of what runs, the files of this repository that it imports anywhere, functions included, and the packages.

    Comments, docstrings and line breaks change nothing that runs.
    """
    tree = ast.parse(file.read_text())
    names = set()
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{each.name}" for each in node.names)}
        elif isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    places = [top / name.replace(".", "/") for name in names for top in _PATH]
    candidates = [*(place.with_suffix(".py") for place in places), *(place / "__init__.py" for place in places)]
    imported = frozenset(each for each in candidates if each.is_file())
    tops = {name.partition(".")[0] for name in names}
    packages = frozenset(_PACKAGES.get(top, top.replace("_", "-")) for top in tops)
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), imported, packages


def _with_imports(files: Iterable[Path]) -> set[Path]:
    found: set[Path] = set()
    left = set(files)
    while left:
        file = left.pop()
        found.add(file)
        left |= _program(file)[1] - found
    return found


def files_of(run: str) -> set[Path]:
    """Tests run machine code over rows and addresses that _ROOMS build. A fuzzer feeds parsers in Python, too: those of the rooms that it
    imports itself. The rest of what they use has no influence on what is checked.
    """
    if run in NAMES:
        [fuzzer] = [
            file for file in (_ROOT / "tests" / "fuzz").glob("[!_]*.py") if f'name = "{run}"' in file.read_text()
        ]
        starts, fed = {fuzzer}, {_room(file) for file in _program(fuzzer)[1]}
    else:
        starts, fed = {_ROOT / "tests" / "unit" / f"{name}.py" for name in UNIT_TESTS[run]}, set()
    return {file for file in _with_imports(starts) if _room(file) in {None, *fed, *_ROOMS}} | _RUNNERS


def _room(file: Path) -> str | None:
    return file.relative_to(_PRODUCT).parts[0] if file.is_relative_to(_PRODUCT) else None


def digest(run: str) -> str:
    """Of the code of one run: its tests, what they run, the constants that machine code is compiled with, the packages that they import,
    and Python.
    """
    files = files_of(run)
    lines = [f"{file.relative_to(_ROOT)} {_program(file)[0]}" for file in files]
    packages = {package for file in files for package in _program(file)[2]}
    locked = (_ROOT / "requirements" / "dev.txt").read_text().splitlines()
    lines += [line for line in locked if line.partition("==")[0] in packages]
    lines.append("Python {}.{}".format(*sys.version_info[:2]))
    return hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()


def digests() -> dict[str, str]:
    return {run: digest(run) for run in (*UNIT_TESTS, *NAMES)}


def have_passed() -> set[str]:
    """The runs whose code is the code that passed last."""
    recorded: dict[str, str] = json.loads(_RECORD.read_text()) if _RECORD.exists() else {}
    return {run for run, found in recorded.items() if run in (*UNIT_TESTS, *NAMES) and digest(run) == found}


if __name__ == "__main__":
    if sys.argv[1:]:
        _RECORD.write_text(json.dumps(json.loads(sys.argv[1]), indent=2) + "\n")
    else:
        print(json.dumps(digests()))
