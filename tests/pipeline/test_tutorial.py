"""docs/tutorial.md from its first command to its last, and docs/recipes/ with the same clicks."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from pipeline.page_commands import blocks, run_all
from pipeline.running import values_for

# test_readme.py leads from a CSV file to predictions, and test_stream_releases.py follows a folder, in `make test`.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]

DOCS = Path(__file__).parents[2] / "docs"
TUTORIAL = (DOCS / "tutorial.md").read_text()


def run(folder: Path, block: str) -> list[subprocess.CompletedProcess[str]]:
    return run_all(folder, block.splitlines())


def with_ports(folder: Path, name: str) -> int:
    """Only the ports of a values file are not as written, because tests run side by side; returns that of serving."""
    given = values_for(folder, [0], "20200401/00", "20200401/00")
    with (folder / name).open("a") as values:
        values.write(yaml.safe_dump({key: given[key] for key in given.keys() - {"data", "model", "trainer"}}))
    return int(given["serving"]["config"]["port"])


def until_passes(folder: Path, records: int) -> None:
    """Until a stream has trained so many records."""
    ends = time.monotonic() + 120
    trained = 0
    while trained < records and time.monotonic() < ends:
        time.sleep(1)
        [status] = run(folder, ".venv/bin/elastic-ctr status --json --dir stream")
        trained = json.loads(status.stdout)["master"]["ledger"]["trained"]
    assert trained == records


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where `make setup` has been run, with the tutorial's program."""
    (tmp_path / ".venv").symlink_to(sys.prefix)
    [program] = blocks(TUTORIAL, "python")
    (tmp_path / "clicks.py").write_text(program)
    return tmp_path


def test_the_tutorial_leads_from_a_csv_file_to_a_live_stream(folder: Path) -> None:
    setup, clicks, imports, train, look, ask, down, stream, grow = blocks(TUTORIAL, "sh")
    [values] = blocks(TUTORIAL, "yaml")
    assert setup == "make setup\n"

    run(folder, clicks)
    [sample] = blocks(TUTORIAL, "csv")
    assert (folder / "clicks.csv").read_text().startswith(sample.partition("\n")[0])
    [imported] = run(folder, imports)
    assert "20000 of 20000 rows are in 4 hours, 20200401/00 to 20200401/03" in imported.stdout
    port = with_ports(folder, "hours/values.yaml")
    try:
        _, predicted = run(folder, train)
        status, _ = run(folder, look)
        [answer] = run(folder, ask.replace("8400", str(port)))
    finally:
        run(folder, down)
    assert "AUC 0.8" in predicted.stderr
    assert "was not trained on these rows" in predicted.stderr
    assert "20200401/02" in status.stdout
    assert (folder / "report.html").stat().st_size > 10_000
    [probability] = json.loads(answer.stdout)["predictions"]
    assert 0.1 < probability < 0.7

    (folder / "stream.yaml").write_text(values.replace("/home/you", str(folder)))
    with_ports(folder, "stream.yaml")
    append, status_of, stop = grow.splitlines()
    try:
        run(folder, stream)
        run(folder, append)
        until_passes(folder, 21_000)
        [streaming] = run(folder, status_of)
    finally:
        run(folder, stop)
    assert "live" in streaming.stdout


def test_the_recipes_train_another_night_and_check_the_values_of_a_cluster(folder: Path) -> None:
    append, night, _ = blocks((DOCS / "recipes" / "nightly.md").read_text(), "sh")
    laptop = (DOCS / "recipes" / "laptop-to-cluster.md").read_text()
    [cluster] = blocks(laptop, "yaml")
    run(folder, "python3 clicks.py > all.csv")
    rows = (folder / "all.csv").read_text().splitlines(keepends=True)
    (folder / "clicks.csv").write_text("".join([rows[0], *(row for row in rows if "T00" in row or "T01" in row)]))
    (folder / "yesterday.csv").write_text("".join([rows[0], *(row for row in rows if "T02" in row)]))
    run(folder, blocks(TUTORIAL, "sh")[2])
    file = folder / "hours" / "values.yaml"
    proposed = file.read_text()
    with_ports(folder, "hours/values.yaml")

    run(folder, night.replace("20200401/02", "20200401/01"))
    run(folder, append)
    run(folder, night)

    passes = json.loads((folder / "report.json").read_text())
    assert "20200401/02" in json.dumps(passes)

    file.write_text(proposed)
    (folder / "cluster.yaml").write_text(cluster)
    [checked] = [block for block in blocks(laptop, "sh") if "check values" in block]
    run(folder, checked)
