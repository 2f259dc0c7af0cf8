"""The modules with machine code, and whether tests/contract/test_bounds_checking.py has passed with them as they are.

python -m contract.compiled_modules    # in tests/: records that it has passed, which `make nightly` does
"""

import hashlib
import re
from pathlib import Path

_PACKAGE = Path(__file__).parents[2] / "python" / "elastic_ctr"
_RECORD = Path(__file__).with_name("bounds_checked.txt")
_COMPILED = re.compile(r"^from elastic_ctr\.machine_code\S* import ", re.MULTILINE)
# Moved modules and rewritten imports change no machine code.
_IMPORTS = re.compile(r"^(?:from|import) [^\n(]*(?:\([^)]*\))?\n", re.MULTILINE)


def digest() -> str:
    """Of all texts that numba compiles, whatever their names are."""
    modules = [each.read_text() for each in _PACKAGE.rglob("*.py")]
    compiled = [each for each in modules if _COMPILED.search(each) or "@compiled" in each]
    texts = sorted(_IMPORTS.sub("", each) for each in compiled)
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()


def have_passed() -> bool:
    return _RECORD.exists() and _RECORD.read_text().strip() == digest()


if __name__ == "__main__":
    _RECORD.write_text(f"{digest()}\n")
