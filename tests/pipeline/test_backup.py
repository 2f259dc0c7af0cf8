"""A release is backed up while it trains, its folder is destroyed, and another one goes on from the backup, by the manual's own commands."""

import contextlib
import random
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic_ctr.config.load import settings
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.local.endpoints import EndpointUnavailable, answers, predict, release_document, role_status
from elastic_ctr.operate.local.plan import RunPlaces
from elastic_ctr.runtime.status.master_status import TrainingStatus
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions.backup import BackupManifest, BackupRefused, read_backup
from pipeline.running import Run, values_for
from pipeline.streaming import CHECKPOINT_SECONDS, answers_are_those_of_the_version, clicks, stream_values, trained
from pipeline.test_intake_streams import posted
from pipeline.test_operating import Done, command
from pipeline.test_whole_run import COMMAND, synthetic
from ports import free_port

PAGE = Path(__file__).parents[2] / "docs/operations/backup.md"
HOURS, RECORDS = 4, 3_000


class Site:
    """A values file, the folder of its run and a place for backups. `lines` are what is predicted."""

    def __init__(self, folder: Path, given: dict[str, Any], lines: list[str]) -> None:
        self.given, self.lines = given, lines
        self.run, self.backups, self.values = folder / "run", folder / "backups", folder / "values.yaml"
        self.values.write_text(yaml.safe_dump(given))
        self.places = RunPlaces(self.run, settings(Values, given, "values.yaml"))

    def words(self, name: str) -> list[str]:
        """A command of the manual, for this folder."""
        lines = re.findall(rf"^\.venv/bin/elastic-ctr ({name} .*)$", PAGE.read_text(), re.MULTILINE)
        [line] = [line for line in lines if "--dir" in line]
        ours = {
            "file:///backups/ctr": f"file://{self.backups}",
            "elastic-ctr-local": str(self.run),
            "values.yaml": str(self.values),
        }
        return [ours.get(word, word) for word in line.split()]

    def does(self, name: str) -> Done:
        done = command(*self.words(name))
        assert done.returncode == 0, done.stderr
        return done

    def until(self, what: str, condition: Callable[[], Any], seconds: float = 120) -> Any:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            try:
                if found := condition():
                    return found
            except EndpointUnavailable:
                pass
            time.sleep(0.1)
        raise AssertionError(f"{what}: not within {seconds} s; logs in {self.run}/logs")

    def status(self) -> TrainingStatus:
        return role_status(TrainingStatus, self.places.info.master)

    def state(self) -> str:
        """`<pass> <state>` of the pass under way."""
        current = self.status().current
        return f"{current.id} {current.state}" if current else "waiting"

    def live(self) -> int | None:
        return release_document(self.places.transfer).live

    def answers(self) -> tuple[list[float], set[int]]:
        probabilities, versions = predict(self.places.serving, "ctr", self.lines)
        return probabilities, set(versions)

    def destroy(self) -> None:
        """Lose the run with its store."""
        command("local", "down", "--dir", self.run)
        shutil.rmtree(self.run)

    def backup(self) -> BackupManifest:
        return read_backup(FileStore(self.backups))

    def interrupted(self, seconds: float) -> None:
        """Kill a backup so long after its first file was written."""
        with subprocess.Popen([COMMAND, *self.words("backup")], stderr=subprocess.PIPE) as begun:
            while begun.poll() is None and not (self.backups / "backup/files").exists():
                time.sleep(0.01)
            time.sleep(seconds)
            begun.kill()


@pytest.fixture
def hours(tmp_path: Path) -> Iterator[Site]:
    """Four hours, of which the last two are not complete yet."""
    slots = synthetic(tmp_path / "data", HOURS, HOURS * RECORDS)
    one = {"trainer": {"replicas": 1}, "pserver": {"replicas": 1}}
    given = values_for(tmp_path / "data", slots, "20200401/00", "20200401/03", **one)
    rows = (tmp_path / "data/20200401/00/part-00000").read_text().splitlines()[:300]
    for hour in ("02", "03"):
        (tmp_path / "data/20200401" / hour / "donefile").unlink()
    site = Site(tmp_path, given, [row.split(maxsplit=2)[2] for row in rows])
    yield site
    command("local", "down", "--dir", site.run)


def test_a_release_that_is_lost_while_it_trains_answers_equally_after_a_restore_and_trains_every_record_once(
    hours: Site, tmp_path: Path
) -> None:
    it, data = hours, tmp_path / "data/20200401"
    it.does("local up")
    first = it.until("two versions have been live", lambda: release_document(it.places.transfer).previous)
    assert command("rollback", first, "--dir", it.run).returncode == 0
    before = it.until("the first version answers", lambda: (found := it.answers())[1] == {first} and found)
    (data / "02/donefile").touch()
    it.until("the third hour is under way", lambda: "waiting" not in it.state() or "20200401/03" in it.state())
    it.interrupted(0)
    with pytest.raises(BackupRefused, match="has no complete backup"):
        it.backup()
    done = it.does("backup")
    it.destroy()

    it.does("restore")
    again = it.does("restore")
    (data / "03/donefile").touch()
    it.does("local up")

    assert done.stdout.startswith(f"version {first}, with checkpoint 20200401-0")
    assert again.stdout.startswith(f"version {first}, with checkpoint 20200401-0")
    assert it.answers() == before
    status = it.until("all is trained", lambda: (now := it.status()).finished and now)
    ledger = status.ledger
    assert (ledger.records, ledger.trained, ledger.repeated) == (HOURS * RECORDS, HOURS * RECORDS, 0)
    # The rollback is restored, too, and ends as before.
    assert it.answers() == before
    assert command("rollback", "--resume", "--dir", it.run).returncode == 0
    newest = max(each.id for each in status.versions if each.state == "published")
    it.until("the newest version is live", lambda: it.live() == newest)


# The test above kills one backup of hours, and tests/unit/store/versions/test_backup.py a backup in each of its writes.
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_stream_goes_on_at_its_next_offset_after_a_restore_though_backups_were_killed_at_any_moment(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    values = stream_values("intake://")
    values["data"]["stream"] |= {"checkpointSeconds": CHECKPOINT_SECONDS}
    values["intake"] = {"enabled": True, "config": {"port": free_port()}}
    it = Site(tmp_path, values, [line.split(maxsplit=2)[2].decode() for line in clicks(50, 1)])
    chance, sent = random.Random(7), 0
    with contextlib.ExitStack() as stack:
        run = Run(it.run, values)
        stack.enter_context(run.session.running())
        run.until(lambda: answers(f"http://{run.places.intake}/healthz"), 60, "the intake")
        for number in range(30):
            posted(run, clicks(100, number), f"piece-{number}")
            sent += 100
            if number == 10:
                run.until(trained(run, sent), 200, "a version")
                it.does("backup")
            elif number > 10:
                it.interrupted(chance.uniform(0, 1.5))
                if number % 5 == 0:
                    checked = command(
                        "restore", "--from", f"file://{it.backups}", "-f", it.values, "--dir", tmp_path / f"{number}"
                    )
                    assert checked.returncode == 0, checked.stderr
        run.until(trained(run, sent), 200, "all that was sent")
        it.does("backup")
        live, before = it.live(), it.answers()
    shutil.rmtree(it.run)

    it.does("restore")
    run = start(values)
    run.until(lambda: run.session.live is not None, 60, "the live version")
    assert (run.session.live, it.answers()) == (live, before)
    run.until(lambda: answers(f"http://{run.places.intake}/healthz"), 60, "the intake")
    posted(run, clicks(100, 99), "after")
    run.until(trained(run, sent + 100), 200, "all that was sent after the restore")

    status = run.status
    assert (status.ledger.trained, status.ledger.records, status.ledger.repeated) == (sent + 100, sent + 100, 0)
    assert status.stream is not None
    assert status.stream.lag == 0
    answers_are_those_of_the_version(run)
