"""Each disk of a run is full in turn, really full: predictions go on, and room is all that it takes to go on."""

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.operate.local.endpoints import ask, predict
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions.published_files import published_versions
from pipeline.running import Run, values_for
from pipeline.test_recovery import adds_up
from pipeline.test_whole_run import synthetic

# Folders of a run that may be volumes of their own, and where the status says that one is full.
DISKS: dict[str, Callable[[dict[str, Any], dict[str, Any]], Any]] = {
    "store": lambda master, _: master["error"],
    "state/master": lambda master, _: master["error"],
    "state/cube-transfer": lambda _, transfer: transfer["problems"],
    "state/ctr-cube-s0-0": lambda _, transfer: transfer["shards"][0]["pods"][0]["errors"],
}
SAYS = {"state/master": "database or disk is full"}


@contextlib.contextmanager
def disks_of_their_own(run: Path) -> Iterator[None]:
    """Each is 48 MB of memory."""
    with contextlib.ExitStack() as stack:
        for name in DISKS:
            folder = run / name
            folder.mkdir(parents=True)
            subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], check=True, timeout=60)
            stack.callback(partial(subprocess.run, ["umount", "--lazy", folder], check=True, timeout=60))
        yield


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """No byte is left on the folder's disk."""
    filler = folder / "filler"
    try:
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"\0" * (1 << 20)):
                pass
        yield
    finally:
        filler.unlink()


@pytest.mark.timeout(600)
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount small disks: sudo make test")
def test_a_full_disk_costs_no_answer_and_room_is_all_it_takes(tmp_path: Path, start: Callable[..., Run]) -> None:
    slots = synthetic(tmp_path / "data", 1 + len(DISKS), 12_000)
    hours = tmp_path / "data" / "20200401"
    later = [hours / f"{1 + number:02}" / "donefile" for number in range(len(DISKS))]
    for each in later:
        each.unlink()
    values = values_for(
        tmp_path / "data", slots, "20200401/00", f"20200401/{len(DISKS):02}",
        trainer={"replicas": 1}, pserver={"replicas": 1},
    )  # fmt: skip
    line = (hours / "00" / "part-00000").read_text().splitlines()[0].split(maxsplit=2)[2]

    def serves_all(run: Run, versions: int) -> bool:
        published = published_versions(open_store(run.places.store))
        return len(published) == versions and run.session.live == published[-1]

    def answers_and_says(run: Run, name: str, hour: int) -> bool:
        [probability], _ = predict(run.places.serving, run.places.info.model, [line])
        assert 0 < probability < 1
        said = DISKS[name](ask(f"http://{run.places.info.master}/status"), ask(f"http://{run.places.transfer}/status"))
        # The ledger's journal may have room for the hour.
        through = name == "state/master" and serves_all(run, hour)
        return through or SAYS.get(name, "No space left on device") in str(said)

    with disks_of_their_own(tmp_path / "run"):
        run = start(values)
        run.until(lambda: serves_all(run, 1), 240, "the first version is live")
        for hour, (name, donefile) in enumerate(zip(DISKS, later, strict=True), 2):
            said = partial(answers_and_says, run, name, hour)
            with full(tmp_path / "run" / name):
                donefile.touch()
                run.until(said, 90, f"the status says that {name} is full")
            run.until(partial(serves_all, run, hour), 120, f"after {name} was full the next version is live")
        report = run.finish(120)

    adds_up(report, 12_000)
    assert run.session.supervisor.restarts == []
    assert report["parity"]["maxAbsDiff"] <= 1e-5
