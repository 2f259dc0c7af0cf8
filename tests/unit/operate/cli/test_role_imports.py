"""What the process of a role imports before it runs."""

import subprocess
import sys

from elastic_ctr.operate.cli.main import COMMANDS


def test_roles_whose_children_run_machine_code_start_without_its_compiler() -> None:
    """numba takes 0.3 CPU seconds of a start, and 60 MB of the pod."""
    modules = [COMMANDS[role][0] for role in ("trainer", "intake", "cube-transfer", "cube-server", "serving")]
    code = f"import importlib, sys; list(map(importlib.import_module, {modules}))"
    look = "print({'numba', 'paddle', 'pyarrow'} & sys.modules.keys())"

    done = subprocess.run([sys.executable, "-c", f"{code}; {look}"], capture_output=True, text=True, check=True)

    assert done.stdout == "set()\n"
