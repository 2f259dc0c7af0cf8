"""A stream whose store is lost goes on from the archive, by the manual's own settings and commands."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from contract.bucket_world import KEY, SECRET, BucketServer, s3proxy
from elastic_ctr.config.load import settings
from elastic_ctr.config.model import StartFrom
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.local.plan import RunPlaces
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions.published_files import read_version
from elastic_ctr.training.master.work.start_from import choose
from pipeline.page_commands import blocks, run_all
from pipeline.streaming import clicks, stream_values
from pipeline.test_backup import Site
from pipeline.test_operating import command
from pipeline.test_whole_run import COMMAND

PAGE = Path(__file__).parents[2] / "docs/operations/archive.md"
URL = "s3://ads/archive"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BucketServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    with s3proxy(tmp_path / "s3proxy") as made:
        made.bucket("ads")
        yield made


# tests/contract/test_archive.py begins a master with an archived base in every run.
@pytest.mark.nightly
@pytest.mark.timeout(400)
def test_a_stream_whose_store_is_lost_goes_on_behind_the_archived_base_and_trains_each_click_once(
    tmp_path: Path, server: BucketServer
) -> None:
    log = tmp_path / "log"
    log.mkdir()
    sections = {each.partition("\n")[0]: each for each in PAGE.read_text().split("\n## ")}
    [archive] = blocks(sections["# Keep an archive in a bucket"], "yaml")
    [start_from] = blocks(sections["After the loss of the store"], "yaml")
    down, remove, up = blocks(sections["After the loss of the store"], "sh")[0].splitlines()
    [score] = blocks(sections["Score by an archived base"], "sh")
    values = stream_values(f"file://{log}?follow")
    values["store"] = yaml.safe_load(archive)["store"]
    values["store"]["config"]["archive"]["bucket"] = {"endpoint": server.endpoint}
    it = Site(tmp_path, values, [line.split(maxsplit=2)[2].decode() for line in clicks(50, 1)])
    it.places = RunPlaces(tmp_path / "elastic-ctr-local", settings(Values, values, "values.yaml"))
    (tmp_path / "from-archive.yaml").write_text(start_from)
    (tmp_path / ".venv").symlink_to(Path(COMMAND).parents[1])

    def append(rows: int, seed: int) -> None:
        with (log / "clicks").open("ab") as out:
            out.write(b"\n".join(clicks(rows, seed)) + b"\n")

    def are_live(records: int) -> bool:
        status = it.status()
        versions = [each.version for each in status.done if each.version]
        under_way = any(each.state not in ("done", "waiting") for each in status.passes)
        return status.ledger.trained == records and not under_way and [it.live()] == versions[-1:]

    try:
        append(300, 1)
        run_all(tmp_path, [up.replace(" -f from-archive.yaml", "")])
        it.until("the first base is archived", lambda: (now := it.status().archive) is not None and now.version)
        append(300, 2)
        it.until("a delta behind it answers", lambda: are_live(600))
        lost = it.live()
        base, checkpoint = choose(open_store(StoreConfig(url=URL, bucket=server.access())), StartFrom())
        assert lost is not None
        assert base.version < lost

        run_all(tmp_path, [down])
        shutil.rmtree(tmp_path / "elastic-ctr-local/store")
        append(200, 3)
        run_all(tmp_path, [remove, up])
        assert checkpoint.stream is not None
        [offset] = checkpoint.stream.following.values()
        rest = 800 - (log / "clicks").read_bytes()[:offset].count(b"\n")
        it.until("the clicks behind the base are live", lambda: are_live(rest))

        status = it.status()
        assert (status.ledger.records, status.ledger.trained, status.ledger.repeated) == (rest, rest, 0)
        assert status.started_from is not None
        assert (status.started_from.store, status.started_from.version) == (URL, base.version)
        first = read_version(open_store(it.places.store), min(each.id for each in status.versions))
        assert (first.kind, [start for start, _ in first.offsets.values()]) == ("base", [offset])
        # Pods had the lost version when its store was lost.
        assert first.version > lost
        assert it.answers()[1] == {it.live()}
        it.until(
            "its base is archived", lambda: (now := it.status().archive) is not None and now.version == first.version
        )

        (tmp_path / "rows.txt").write_bytes(b"\n".join(clicks(200, 7)) + b"\n")
        [done] = run_all(tmp_path, [score])
        assert f"version {first.version}: 1 files in 1 tasks" in done.stderr
    finally:
        command("local", "down", "--dir", tmp_path / "elastic-ctr-local")
