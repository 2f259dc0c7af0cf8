"""The folder of a search until its end: converted hours, Optuna's journal, and the files of running trials."""

import json
import shutil
from pathlib import Path

from elastic_ctr.jobs.tune.passes import Hours
from elastic_ctr.store.backends.temporary import appearing

_OURS = ("tune.json", "journal.log", "data", "trials", ".lock")


class OtherSearch(ValueError):
    """The folder belongs to another search; the text is a sentence."""


class Scratch:
    """A folder that one process has locked."""

    def __init__(self, folder: Path) -> None:
        self.path = folder.resolve()
        self.data = self.path / "data"
        self.trials = self.path / "trials"
        self.journal = self.path / "journal.log"
        self.hours_file = self.data / "hours.json"
        self._mark = self.path / "tune.json"

    def begin(self, digest: str) -> None:
        """Begin or resume the search with this digest. Raises OtherSearch, OSError."""
        if self._mark.exists():
            if json.loads(self._mark.read_text()) != {"search": digest}:
                raise OtherSearch(
                    f"{self.path} has a search of other values, hours or options; remove it, or give another --scratch"
                )
        elif any(each.name != ".lock" for each in self.path.iterdir()):
            raise OtherSearch(f"{self.path} has files of something else; give another --scratch")
        else:
            with appearing(self._mark) as out:
                out.write(json.dumps({"search": digest}).encode())
        # Delete the files of trials that were killed.
        shutil.rmtree(self.trials, ignore_errors=True)
        self.trials.mkdir()

    def hours(self) -> Hours | None:
        """Return the converted hours, or None if the conversion is not finished."""
        if self.hours_file.exists():
            return Hours.model_validate_json(self.hours_file.read_text())
        # Delete the files of an unfinished conversion.
        shutil.rmtree(self.data, ignore_errors=True)
        return None

    def keep_hours(self, hours: Hours) -> Hours:
        with appearing(self.hours_file) as out:
            out.write(hours.model_dump_json().encode())
        return hours

    def remove(self) -> None:
        """Delete the files of a search, and the folder if it has nothing else."""
        for name in _OURS:
            each = self.path / name
            shutil.rmtree(each) if each.is_dir() else each.unlink(missing_ok=True)
        if not any(self.path.iterdir()):
            self.path.rmdir()
