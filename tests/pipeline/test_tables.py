"""Tables that their own libraries write: docs/operations/tables.md as it is written, and a training over kills and compactions."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from contract.iceberg_world import WrittenByRest, rest_catalog
from pipeline.page_commands import blocks, run_all, write_values
from pipeline.running import Run, values_for
from written_tables import KINDS

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "tables.md"
COUNTRIES = {"de": 0.9, "a/b": 0.1, None: 0.5}
ROWS = 600


def append(folder: Path, seed: int) -> None:
    """Rows whose clicks depend on the partition alone."""
    dice = random.Random(seed)
    rows = [
        {"user": f"u{dice.randrange(50)}", "country": country, "click": int(dice.random() < rate)}
        for country, rate in COUNTRIES.items()
        for _ in range(ROWS)
    ]
    write_deltalake(folder, pa.Table.from_pylist(rows), mode="append", partition_by=["country"])


@pytest.mark.timeout(300)
def test_the_page_on_tables_is_true(tmp_path: Path) -> None:
    [values] = blocks(PAGE.read_text(), "yaml")
    [commands] = blocks(PAGE.read_text(), "sh")
    for version in range(3):
        append(tmp_path / "clicks", version)
    # Behind data.end.
    DeltaTable(tmp_path / "clicks").delete("user = 'u1'")
    write_values(tmp_path, values)

    written = [f"{each} --json" if " evaluate " in each else each for each in commands.splitlines()]
    _, run, added, before = (each.stdout for each in run_all(tmp_path, written))

    rows = ROWS * len(COUNTRIES)
    assert "table/00000001" in run
    # By the users alone it would be 0.5.
    assert json.loads(added)["total"]["auc"] > 0.7
    assert json.loads(added)["total"]["rows"] == rows
    assert json.loads(before)["total"]["rows"] == 2 * rows


# tests/unit/training/master/test_tables.py kills the master at each step, with trainers that count rows.
@pytest.mark.nightly
@pytest.mark.timeout(420)
@pytest.mark.parametrize("kind", KINDS)
def test_each_row_of_a_table_is_trained_once_over_kills_of_the_master_and_compactions(
    tmp_path: Path, start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    table = KINDS[kind](tmp_path, monkeypatch)
    appended = 0

    def write(rows: int) -> None:
        nonlocal appended
        table.append(*range(appended, appended + rows))
        appended += rows

    write(4_000)
    values: dict[str, Any] = values_for(
        tmp_path, None, "earliest", "", trainer={"replicas": 1}, pserver={"replicas": 1}
    )
    del values["data"]["end"]
    values["data"] |= {"source": {"url": table.url}, "format": "parquet", "label": "click", "taskBytes": 4_000}
    values["features"] = {"tag": {"type": "categorical"}, "id": {"type": "categorical"}}
    run = start(values)

    def works() -> bool:
        up = "ctr-master-0" in run.session.supervisor.pids()
        return up and run.state() != "" and not run.state().endswith(" waiting")

    for _ in range(3):
        write(3_000)
        run.until(works, 120, "a master is up, and a pass under way")
        run.kill("ctr-master-0")
        table.compact()
        write(500)
    run.until(lambda: run.status.ledger.trained >= appended, 240, "all rows are trained")
    table.compact()
    write(200)
    run.until(
        lambda: run.status.ledger.trained >= appended and run.state().endswith(" waiting"),
        120,
        "the last rows are done",
    )

    ledger = run.status.ledger
    assert (ledger.records, ledger.trained, ledger.refused, ledger.repeated) == (appended, appended, 0, 0)
    assert run.generation() == 1


# tests/contract/test_iceberg_catalog.py reads the commits of such a table, while its catalog is away as well.
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_pass_has_the_snapshots_of_a_rest_catalog_and_training_goes_on_once_that_is_back(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    with rest_catalog(tmp_path / "catalog") as server:
        table = WrittenByRest(server)
        before, *_ = (table.append(*range(first, first + 2_000)) for first in (0, 2_000, 4_000))
        values: dict[str, Any] = values_for(
            tmp_path, None, before, "", trainer={"replicas": 1}, pserver={"replicas": 1}
        )
        del values["data"]["end"]
        values["data"] |= {"source": {"url": table.url}, "format": "parquet", "label": "click", "splitsPerPass": 2}
        values["features"] = {"tag": {"type": "categorical"}, "id": {"type": "categorical"}}
        run = start(values)
        run.until(
            lambda: run.status.ledger.trained == 4_000 and run.state().endswith(" waiting"), 180, "one pass is done"
        )
        assert [one.records for one in run.status.passes if one.state == "done"] == [4_000]

        server.kill()
        run.until(lambda: "does not give the table" in run.status.error, 60, "the status names the catalog")
        server.start()
        table.compact()
        table.append(*range(6_000, 7_000))
        run.until(lambda: run.status.ledger.trained == 5_000, 120, "the rows behind the compaction are trained")
        assert run.status.error == ""
