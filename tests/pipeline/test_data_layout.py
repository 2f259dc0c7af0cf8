"""docs/operations/data-layout.md as it is written: a partitioned table of Parquet files without donefiles, from its folders to scores."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from pipeline.running import values_for

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
    [values] = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    [commands] = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    write(tmp_path / "clicks")
    (tmp_path / ".venv").symlink_to(sys.prefix)
    # Only the ports and the number of processes are not as written.
    one = {"replicas": 1}
    given = values_for(tmp_path, [0], "20200401/00", "20200401/00", trainer=one, pserver=one)
    rest = yaml.safe_dump({key: block for key, block in given.items() if key != "data"})
    (tmp_path / "values.yaml").write_text(values + rest)

    told = {}
    for command in commands.splitlines():
        words = command.split()
        done = subprocess.run(
            ["bash", "-c", command + " --json" * (words[1] == "evaluate")],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
            timeout=200,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
        told[words[1]] = done.stdout + done.stderr * (words[1] != "evaluate")

    rows = HOURS * ROWS * len(COUNTRIES)
    assert f"{rows:,} rows of {HOURS} hours, 20200401/00 to 20200401/01" in told["analyze"]
    # The numbers of rows without a country, and the value of a folder as it was before it was escaped.
    assert "33.3%" in told["analyze"]
    assert "a/b" in told["analyze"]
    assert "20200401/01" in told["local"]
    # By the users alone it would be 0.5.
    total = json.loads(told["evaluate"])["total"]
    assert total["rows"] == rows / HOURS
    assert total["auc"] > 0.7
