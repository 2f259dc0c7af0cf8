"""Programs of tools/ as modules, for tests of their functions."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def tool(name: str) -> ModuleType:
    """The module of tools/`name`.py."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
