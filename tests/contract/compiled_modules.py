"""Whether tests/contract/test_bounds_checking.py has passed with the machine code and the parsers as they are.

python -m contract.compiled_modules           # in tests/: prints the digest
python -m contract.compiled_modules DIGEST    # records that the file has passed with it, which `make nightly` does
"""

import ast
import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_RECORD = Path(__file__).with_name("bounds_checked.txt")
# Machine code, the constants that it is compiled with, and what the fuzzers feed.
_ROOMS = ("cube", "features", "formats", "machine_code", "serving", "sources", "store", "training/export")
_NUMBA = ("numba==", "llvmlite==", "numpy==")


def _sources() -> Iterator[str]:
    """Programs without comments, docstrings and line breaks: these change nothing that runs."""
    folders = [_ROOT / "python" / "elastic_ctr" / room for room in _ROOMS]
    tests = [_ROOT / "tests" / "fuzz", _ROOT / "tests" / "unit" / "cube", _ROOT / "tests" / "unit" / "formats"]
    for folder in (*folders, *tests, _ROOT / "tests" / "unit" / "features"):
        for file in folder.rglob("*.py"):
            tree = ast.parse(file.read_text())
            for node in ast.walk(tree):
                if isinstance(
                    node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
                ) and ast.get_docstring(node):
                    node.body = node.body[1:]
            yield f"{file.relative_to(_ROOT)}\0{ast.dump(tree)}"
    yield from (
        line for line in (_ROOT / "requirements" / "dev.txt").read_text().splitlines() if line.startswith(_NUMBA)
    )


def digest() -> str:
    return hashlib.sha256("\0".join(sorted(_sources())).encode()).hexdigest()


def have_passed() -> bool:
    return _RECORD.exists() and _RECORD.read_text().strip() == digest()


if __name__ == "__main__":
    if sys.argv[1:]:
        _RECORD.write_text(f"{sys.argv[1]}\n")
    else:
        print(digest())
