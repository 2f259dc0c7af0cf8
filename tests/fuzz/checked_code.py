"""The folder for machine code with bounds checks, which is kept between runs of the same sources."""

import hashlib
import shutil
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]


def checked_code(root: Path = ROOT) -> Path:
    """The folder of the product's sources as they are; those of other sources go.

    numba keys what it caches by the file of a function alone: code of another module that was compiled into it would stay as it was,
    and types are unpickled by the names of classes, which may be gone. Processes of one run find the same folder.
    """
    found = hashlib.sha256(version("numba").encode())
    for file in sorted((root / "python").rglob("*.py")):
        found.update(f"\n{file.relative_to(root)} {hashlib.sha256(file.read_bytes()).hexdigest()}".encode())
    folder = root / "build" / "numba-boundscheck" / found.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    for other in folder.parent.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder
