"""A whole release beside an HDFS with Kerberos: hours come from there, and versions go there."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from contract.hadoop_world import secure_hadoop_world
from contract.kerberos_world import REALM
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions.published_files import published_versions
from pipeline.running import Run, values_for
from pipeline.test_whole_run import synthetic


# tests/contract/test_store_kerberos.py has the store alone, and test_whole_run.py a release whose hours are in a folder.
@pytest.mark.nightly
def test_a_release_reads_hours_from_a_secured_hdfs_and_publishes_there_past_the_life_of_a_ticket(
    tmp_path: Path, start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = synthetic(tmp_path / "data", 2, 20_000)
    with secure_hadoop_world(tmp_path / "secure") as (hadoop, kdc):
        for name, value in kdc.environment.items():
            monkeypatch.setenv(name, value)
        user = f"brief@{REALM}"
        keytab = str(kdc.add(user, "brief.keytab", "10 seconds"))
        for folder in ("/clicks", "/store"):
            hadoop.ask("PUT", folder, "MKDIRS")
            hadoop.ask("PUT", folder, "SETOWNER", owner="brief")
        places = {
            folder: StoreConfig(url=f"swebhdfs://{hadoop.door}/{folder}", user=user, keytab=keytab)
            for folder in ("clicks", "store")
        }
        with closing(open_store(places["clicks"])) as clicks:
            for split in ("20200401/00", "20200401/01"):
                for file in (tmp_path / "data" / split).iterdir():
                    clicks.put(file, f"{split}/{file.name}")

        source, store = (places[folder].model_dump(by_alias=True) for folder in ("clicks", "store"))
        values = values_for(tmp_path, slots, "20200401/00", "20200401/01", store={"config": store})
        values["data"]["source"] = source
        report = start(values).finish()

        assert [each["kind"] for each in report["passes"]] == ["base", "delta"]
        assert report["ledger"]["trained"] == 20_000
        with closing(open_store(places["store"])) as opened:
            assert published_versions(opened) == [each["version"] for each in report["passes"]]
        # Each role acquires its tickets by itself, and renews them.
        assert kdc.tickets(user, f"krbtgt/{REALM}@{REALM}") > 10
