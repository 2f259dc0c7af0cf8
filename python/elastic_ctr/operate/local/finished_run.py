"""A run whose processes have ended: the answers of master and cube-transfer, as far as their files contain them."""

import shutil
import sqlite3
import tempfile
from pathlib import Path

from pydantic import ValidationError

from elastic_ctr.cube.transfer.state_file import PersistedState, StateFile
from elastic_ctr.operate.local.run_folder import RunFolder
from elastic_ctr.runtime.documents import DOCUMENT_LIMIT, DocumentDamaged, read_document
from elastic_ctr.runtime.lock import StateLock
from elastic_ctr.runtime.sqlite_file import NewerSchema
from elastic_ctr.runtime.status.master_status import TrainingStatus
from elastic_ctr.runtime.status.transfer_status import ReleaseStatus, VersionTimes
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.ledger_file import LEDGER
from elastic_ctr.training.master.training_status import status_of_ledger


class RunUnreadable(ValueError):
    """The files of a run cannot be read; the text has the file, the reason and the way out."""


def answers_of_finished(run: RunFolder) -> tuple[TrainingStatus, ReleaseStatus | None]:
    """Return the answers of master and, if it had a state, of cube-transfer, without changing the folder. Raises RunUnreadable."""
    state = run.path / "state"
    return _ledger_of(state / "master", run), _release_of(state / "cube-transfer")


def _ledger_of(folder: Path, run: RunFolder) -> TrainingStatus:
    """Read a copy of the ledger, because SQLite would write beside the file, and an earlier release's ledger is migrated."""
    if not (folder / LEDGER).exists():
        raise RunUnreadable(f"{run.path} has no ledger: the master of that run never started; {run.logs} says why")
    try:
        with tempfile.TemporaryDirectory(prefix="elastic-ctr-report-") as copies:
            for name in (LEDGER, f"{LEDGER}-wal"):
                if (folder / name).exists():
                    shutil.copyfile(folder / name, Path(copies, name))
            if StateLock(folder).owner() is not None:
                raise RunUnreadable(f"{run.path} has just been started again; ask once more")
            ledger = Ledger(Path(copies, LEDGER))
            try:
                return status_of_ledger(ledger)
            finally:
                ledger.close()
    except NewerSchema as wrong:
        raise RunUnreadable(
            f"{folder / LEDGER} was written by a newer release: ask the elastic-ctr of that release"
        ) from wrong
    except (sqlite3.Error, ValidationError) as wrong:
        reason = wrong.errors()[0]["msg"] if isinstance(wrong, ValidationError) else wrong
        raise RunUnreadable(f"{folder / LEDGER} cannot be read as a ledger: {reason}") from wrong
    except OSError as failed:
        raise RunUnreadable(f"{folder / LEDGER} cannot be read: {failed.strerror or failed}") from failed


def _release_of(folder: Path) -> ReleaseStatus | None:
    path = StateFile(folder).path
    try:
        with path.open("rb") as file:
            state = read_document(PersistedState, file.read(DOCUMENT_LIMIT + 1)).state
    except FileNotFoundError:
        return None
    except OSError as failed:
        raise RunUnreadable(f"{path} cannot be read: {failed.strerror or failed}") from failed
    except DocumentDamaged as wrong:
        raise RunUnreadable(f"{path} is damaged: {wrong}; move it away to have the report without it") from wrong
    return ReleaseStatus(
        live=state.live,
        previous=state.previous,
        promotion_paused=state.promotion_paused,
        refused=dict(sorted(state.refused.items())),
        versions={version: VersionTimes(seconds_to_live=each.seconds_to_live) for version, each in state.times.items()},
    )
