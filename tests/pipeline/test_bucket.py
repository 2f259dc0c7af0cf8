"""Hours of clicks in a bucket, and the versions in another prefix of it: from there to a prediction."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from contract.bucket_world import KEY, SECRET, s3proxy
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions.published_files import published_versions, read_version
from pipeline.page_commands import blocks, run_all, write_values
from pipeline.running import Run, values_for
from pipeline.test_data_layout import write
from pipeline.test_whole_run import COMMAND, synthetic

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "buckets.md"


# The next test has hours and versions in a bucket, too, and tests/contract/test_bucket.py each request of the store.
@pytest.mark.nightly
def test_hours_in_a_bucket_become_versions_in_the_bucket_that_answer(tmp_path: Path, start: Callable[..., Run]) -> None:
    data = tmp_path / "data"
    slots = synthetic(data, 2, 8_000)
    with s3proxy(tmp_path / "s3proxy") as server:
        bucket = server.bucket()
        raw = server.raw(bucket)
        for file in data.glob("2*/*/*"):
            raw.put(f"clicks/{file.relative_to(data)}", file.read_bytes(), use_multipart=False)
        access = server.access().model_dump(by_alias=True)
        run = start(
            values_for(
                data,
                slots,
                "20200401/00",
                "20200401/01",
                data={"source": {"url": f"s3://{bucket}", "bucket": access}, "path": "/clicks"},
                store={"config": {"url": f"s3://{bucket}/models", "bucket": access}},
                trainer={"replicas": 1},
                pserver={"replicas": 1},
            )
        )
        report = run.finish()

        assert [each["kind"] for each in report["passes"]] == ["base", "delta"]
        assert report["ledger"]["trained"] == 8_000
        assert report["parity"]["maxAbsDiff"] <= 1e-5
        store = open_store(run.places.store)
        assert report["live"] == published_versions(store)[-1]
        files = server.files(bucket)
        assert {f"models/{each.path}" for each in read_version(store, report["live"]).cube_files} <= set(files)
        assert not [each for each in files if ".part-" in each]
        assert not (run.places.folder / "store").exists()
        lines = data / "20200401/01/part-00000"
        asked = subprocess.run(
            [COMMAND, "predict", str(lines), "--address", run.places.serving],
            check=True, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert len(asked.stdout.splitlines()) == len(lines.read_bytes().splitlines()) > 1_000


@pytest.mark.timeout(300)
def test_the_page_of_buckets_leads_from_a_partitioned_table_to_a_prediction(tmp_path: Path) -> None:
    section = PAGE.read_text().partition("## From a table")[2].partition("\n## ")[0]
    [values] = blocks(section, "yaml")
    [commands] = blocks(section, "sh")
    write(tmp_path / "clicks")
    access = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET}
    with s3proxy(tmp_path / "s3proxy") as server:
        raw = server.raw(server.bucket("ads"))
        for file in (tmp_path / "clicks").rglob("*.parquet"):
            raw.put(str(file.relative_to(tmp_path)), file.read_bytes(), use_multipart=False)
        # The seconds until files have settled are not as written either, and versions go to the bucket, too.
        here = values.replace("http://127.0.0.1:9000", server.endpoint)
        store = {"store": {"config": {"url": "s3://ads/models", "bucket": {"endpoint": server.endpoint}}}}
        write_values(tmp_path, here.replace("settleSeconds: 300", "settleSeconds: 1") + yaml.safe_dump(store))
        *begin, down = commands.splitlines()
        # Nine of ten rows of de were clicked, and one of ten of a/b.
        other = begin[-2].replace('"de"', '"a/b"'), begin[-1]
        done = run_all(tmp_path, [*begin, *other, down], **access)
        published = {file for file in server.files("ads") if file.startswith("models/")}
    assert any(file.endswith(".seq") for file in published)
    assert not [file for file in published if ".part-" in file]
    assert not (tmp_path / "elastic-ctr-local" / "store").exists()
    assert list(yaml.safe_load((tmp_path / "values.yaml").read_text())["features"]) == ["user", "country"]
    assert 0 < float(done[5].stdout) < float(done[3].stdout) < 1
