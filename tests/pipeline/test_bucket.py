"""Hours of clicks in a bucket, and the versions in another prefix of it: from there to a prediction."""

import subprocess
from collections.abc import Callable
from pathlib import Path

from contract.bucket_world import s3proxy
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions.published_files import published_versions, read_version
from pipeline.running import Run, values_for
from pipeline.test_whole_run import COMMAND, synthetic


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
