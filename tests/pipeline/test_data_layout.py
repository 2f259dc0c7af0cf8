"""docs/operations/data-layout.md as it is written: a partitioned table of Parquet files without donefiles, from its folders to scores."""

import json
import os
import random
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from pipeline.page_commands import blocks, run_all, write_values

PAGE = Path(__file__).parents[2] / "docs" / "operations" / "data-layout.md"
COUNTRIES = {"de": 0.9, "a%2Fb": 0.1, "__HIVE_DEFAULT_PARTITION__": 0.5}
HOURS, ROWS = 2, 600


def write(folder: Path) -> None:
    """Hours whose clicks depend on the folder alone, written long ago."""
    dice = random.Random(7)
    for hour in range(HOURS):
        for country, rate in COUNTRIES.items():
            rows = [{"user": f"u{dice.randrange(50)}", "click": int(dice.random() < rate)} for _ in range(ROWS)]
            file = folder / f"dt=2020-04-01/hr={hour:02}/country={country}/part-0.parquet"
            file.parent.mkdir(parents=True)
            parquet.write_table(pa.Table.from_pylist(rows), file)
    for each in [folder, *folder.rglob("*")]:
        os.utime(each, (1e9, 1e9))


@pytest.mark.timeout(300)
def test_a_partitioned_table_without_donefiles_is_read_where_it_is(tmp_path: Path) -> None:
    [values] = blocks(PAGE.read_text(), "yaml")
    [commands] = blocks(PAGE.read_text(), "sh")
    write(tmp_path / "clicks")
    write_values(tmp_path, values)

    written = [f"{each} --json" if " evaluate " in each else each for each in commands.splitlines()]
    done = run_all(tmp_path, written)
    told = {each.args[2].split()[1]: each for each in done}
    analyzed = told["analyze"].stdout + told["analyze"].stderr

    rows = HOURS * ROWS * len(COUNTRIES)
    assert f"{rows:,} rows of {HOURS} hours, 20200401/00 to 20200401/01" in analyzed
    # The numbers of rows without a country, and the value of a folder as it was before it was escaped.
    assert "33.3%" in analyzed
    assert "a/b" in analyzed
    assert "20200401/01" in told["local"].stdout + told["local"].stderr
    # By the users alone it would be 0.5.
    total = json.loads(told["evaluate"].stdout)["total"]
    assert total["rows"] == rows / HOURS
    assert total["auc"] > 0.7
