"""Features that need statistics: pinned by the first pass, in every version, and for the model's life."""

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.pinned_statistics import read_statistics
from elastic_ctr.store.versions.published_files import published_versions, read_version
from pipeline.running import TRAINING, Run, values_for

ROWS = 1500
FEATURES = {
    "price": {"type": "numeric", "transform": ["log1p", "standardize"]},
    "price_bin": {"type": "bucketized", "column": "price", "boundaries": {"quantiles": 8}},
    "device": {"type": "categorical", "vocabulary": {"top": 4}},
    "user": {"type": "categorical"},
}


def hour(folder: Path, number: int, *, with_price: bool = True) -> None:
    drawn = random.Random(number)
    split = folder / "20200401" / f"{number:02d}"
    split.mkdir(parents=True)
    lines = ["click,price,device,user"]
    for _ in range(ROWS):
        device = drawn.choice("abcdefgh")
        click = int(drawn.random() < (0.6 if device in "ab" else 0.1))
        price = f"{drawn.lognormvariate(1, 1):.3f}" if with_price else ""
        lines.append(f"{click},{price},{device},{drawn.randrange(200)}")
    (split / "part.csv").write_text("\n".join(lines) + "\n")
    (split / "donefile").write_bytes(b"")


def values_until(folder: Path, last: int) -> dict[str, Any]:
    return values_for(
        folder / "logs",
        None,
        "20200401/00",
        f"20200401/{last:02d}",
        model={"network": {"name": "deepfm", "layers": [16]}, "partitions": 4},
        data={"format": "csv", "label": "click", "taskBytes": 20_000},
        trainer={"replicas": 2},
        pserver={"replicas": 1},
        features=FEATURES,
    )


@contextmanager
def running(folder: Path, values: dict[str, Any]) -> Iterator[Run]:
    run = Run(folder / "run", values, TRAINING)
    with run.session.running():
        yield run


def trained(run: Run) -> bool:
    return run.status.finished


def stopped(run: Run) -> str:
    current = run.status.current
    return current.reason if current is not None and current.state == "stopped" else ""


def documents(store: FileStore) -> list[dict[str, Any]]:
    """features.json of every version, whose digest its manifest has."""
    found = []
    for version in published_versions(store):
        path = f"{layout.model_folder(version)}/features.json"
        digests = {each.path: each.sha256 for each in read_version(store, version).model_files}
        assert digests[path] == read_version(store, version).features
        found.append(json.loads(store.get_bytes(path)))
    return found


# tests/unit/training/master/test_statistics.py has pinning, restarts and a vanished column with trainers that count rows, and test_rows.py
# statistics of the first hour in each version of a whole run.
@pytest.mark.nightly
def test_statistics_are_pinned_once_kept_over_a_restart_and_guard_against_a_vanished_column(tmp_path: Path) -> None:
    """tests/unit/training has the refusals: other statistics, and a file of them that was changed by hand."""
    for number in range(2):
        hour(tmp_path / "logs", number)
    store = FileStore(tmp_path / "run/store")

    with running(tmp_path, values_until(tmp_path, 1)) as run:
        run.until(lambda: trained(run), 120, "two hours")
        status = run.status

    assert [each.records for each in status.passes] == [ROWS, ROWS]
    [name] = store.list(layout.STATISTICS)
    pinned = read_statistics(store, name.removesuffix(".json"))
    assert pinned.numbers["price:log1p"].rows == ROWS
    assert [each["statistics"] == json.loads(pinned.to_json()) for each in documents(store)] == [True, True]
    assert status.drift is not None
    assert {each.column for each in status.drift.columns} == {"price", "price:log1p", "device", "user"}
    assert all(each.psi is not None and each.psi < 0.25 for each in status.drift.columns)

    # A restart trains on with the same statistics. A vanished column stops its pass.
    hour(tmp_path / "logs", 2)
    hour(tmp_path / "logs", 3, with_price=False)
    with running(tmp_path, values_until(tmp_path, 3)) as run:
        reason = run.until(lambda: stopped(run), 120, "the vanished column")

    assert "columns have vanished" in reason
    assert "price (0.0% before)" in reason
    assert store.list(layout.STATISTICS) == [name]
    assert [each["statistics"] == json.loads(pinned.to_json()) for each in documents(store)] == [True] * 3
