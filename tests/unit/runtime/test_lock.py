import subprocess
import sys
from pathlib import Path

import pytest

from elastic_ctr.runtime.lock import StateInUse, StateLock

_OWNER = """
import sys
from pathlib import Path
from elastic_ctr.runtime.lock import StateLock
StateLock(Path(sys.argv[1])).acquire()
print("mine", flush=True)
sys.stdin.read()
"""


def test_a_second_owner_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _OWNER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"mine\n"

        with pytest.raises(StateInUse, match=rf"pid {owner.pid}.*set another state directory"):
            StateLock(tmp_path).acquire()

        owner.kill()
        owner.wait()
        with StateLock(tmp_path):
            pass


def test_a_released_lock_may_be_taken_again(tmp_path: Path) -> None:
    with StateLock(tmp_path / "new"):
        pass

    with StateLock(tmp_path / "new"):
        pass
