"""examples/paddlerec-online.yaml on the source's own 100 lines.

`nightly`: test_days.py has the same rules of publication with a formula for each row, and test_whole_run.py the same lines.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions.published_files import published_versions, read_version
from pipeline.running import Run, merged, values_for
from pipeline.test_whole_run import ELASTICCTR, hour

EXAMPLE = Path(__file__).parents[2] / "examples" / "paddlerec-online.yaml"


@pytest.mark.nightly
@pytest.mark.skipif(not ELASTICCTR.exists(), reason="needs the public click logs: put them into ../shared/data")
def test_of_1197_keys_the_59_that_reach_the_online_trainers_base_threshold_are_published(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    lines = (ELASTICCTR / "data.txt").read_bytes()
    scores: dict[int, float] = {}
    for line in lines.decode().splitlines():
        show, click, *features = line.split()
        score = 0.1 * (int(show) - int(click)) + int(click)
        for feature in features:
            key = int(feature.partition(":")[0])
            scores[key] = scores.get(key, 0) + score
    hour(tmp_path / "data", "20190720/0000", lines)
    hour(tmp_path / "data", "20190720/0005", b"")
    slots = (ELASTICCTR / "slot.conf").read_text().split()
    alone = {"replicas": 1}
    here = values_for(tmp_path / "data", slots, "20190720/0000", "20190720/0005", trainer=alone, pserver=alone)
    # Fewer files than the example's 60 partitions: what is published is the same.
    changed = {"data": here["data"], "model": {"partitions": 12}}
    values = merged(merged(here, yaml.safe_load(EXAMPLE.read_text())), changed)

    run = start(values)
    report = run.finish()

    store = open_store(run.places.store)
    [version] = published_versions(store)
    keys: dict[int, bool] = {}
    for entry in read_version(store, version).cube_files:
        file = store.local_path(entry.path)
        assert file is not None
        with closing(SequenceFileReader(file)) as blocks:
            for block, rows in blocks:
                keys.update(zip(block.tolist(), (rows[:, 1:] != 0).any(axis=1).tolist(), strict=True))
    assert len(scores) == 1197
    assert keys.keys() == {key for key, score in scores.items() if score >= 1.5}
    assert len(keys) == 59
    # The vector comes later than the weight: 10 keys have reached embedxThreshold.
    assert {key for key, has_vector in keys.items() if has_vector} <= {k for k, s in scores.items() if s >= 10 - 1e-3}
    assert [(each["pass"], each["records"], each["kind"]) for each in report["passes"]] == [
        ("20190720/0005", 100, "base")
    ]
    assert report["parity"]["maxAbsDiff"] <= 1e-5
