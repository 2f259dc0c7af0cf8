"""README's commands for clicks of one's own, run as they are written."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipeline.running import values_for

README = Path(__file__).parents[2] / "README.md"
HOURS, ROWS = 3, 1000


@pytest.mark.timeout(300)
def test_the_quick_start_with_ones_own_clicks_runs_as_it_is_written(tmp_path: Path) -> None:
    text = README.read_text().partition("## With your own clicks")[2]
    sample = re.findall(r"^```csv\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0]
    commands = re.findall(r"^```sh\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[0].splitlines()
    dice = random.Random(7)
    header, row = sample.splitlines()
    rows = [
        row.replace("T00", f"T{hour:02}").replace("u7", f"u{user}").replace("i31", f"i{dice.randrange(20)}")[:-1]
        + str(int(dice.random() < user / 20))
        for hour in range(HOURS)
        for user in (dice.randrange(20) for _ in range(ROWS))
    ]
    (tmp_path / "clicks.csv").write_text("\n".join([header, *rows]) + "\n")
    (tmp_path / ".venv").symlink_to(sys.prefix)

    said = {}
    try:
        for command in commands:
            words = command.split()[1:]
            done = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=240
            )
            said[words[0] if words[0] != "local" else words[1]] = done
            assert done.returncode == 0, (command, done.stderr)
            if words[0] == "import":
                # Only the ports are not as written: tests run side by side.
                with (tmp_path / "hours" / "values.yaml").open("a") as values:
                    given = values_for(tmp_path, [0], "20200401/00", "20200401/00")
                    values.write(
                        yaml.safe_dump({key: given[key] for key in given.keys() - {"data", "model", "trainer"}})
                    )
    finally:
        down = subprocess.run(
            [".venv/bin/elastic-ctr", "local", "down"], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    assert [command.split()[1] for command in commands] == ["import", "local", "predict", "local"]
    assert (
        f"{HOURS * ROWS} of {HOURS * ROWS} rows are in {HOURS} hours, 20200401/00 to 20200401/02"
        in said["import"].stdout
    )
    assert "next: .venv/bin/elastic-ctr local up -f hours/values.yaml" in said["import"].stdout
    assert (
        "next: .venv/bin/elastic-ctr predict hours/20200401/02    # probabilities and AUC of rows of an hour that was held"
        in said["up"].stderr
    )
    assert "next: .venv/bin/elastic-ctr local down" in said["up"].stderr
    assert len(said["predict"].stdout.splitlines()) == ROWS
    figures, honest = said["predict"].stderr.splitlines()
    assert f"{ROWS} rows, {ROWS} shows" in figures
    assert "AUC 0.8" in figures
    assert re.fullmatch(
        r"version \d+ knows events until \S+ 02:00 UTC and was not trained on these rows: AUC is that of new rows",
        honest,
    )
    assert "processes of " in said["down"].stdout
    assert "nothing runs in" in down.stdout
