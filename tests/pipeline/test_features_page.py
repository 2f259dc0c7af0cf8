"""docs/features.md from its first block to its last: a CSV file, features, a model, answers."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from elastic_ctr.operate.cli.given_values import load_values
from elastic_ctr.operate.cli.local import check_columns
from pipeline.running import values_for

PAGE = Path(__file__).parents[2] / "docs" / "features.md"
# In two hours; of fewer rows an import proposes one pass of both.
ROWS = 10_000


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def clicks(sample: str) -> str:
    """As many rows as the page says, like the one that it shows; users click for reasons."""
    header, row = sample.splitlines()
    dice = random.Random(7)
    rows = []
    for number in range(ROWS):
        cells = dict(zip(header.split(","), row.split(","), strict=True))
        user = dice.randrange(20)
        cells |= {
            "when": f"2020-04-01T0{number % 2}:{number % 60:02}:00Z",
            "user": f"u{user}",
            "tags": "|".join(dice.sample(["sport", "news", "art"], dice.randrange(3))),
            "device": dice.choice(["phone", "tablet", "desktop", "tv"]),
            "price": dice.choice(["", f"{dice.uniform(1, 30):.2f}"]),
            "title": dice.choice(["Red running shoes", "Blue running shorts", "A green hat"]),
            "click": str(int(dice.random() < (0.6 if user < 10 else 0.2))),
        }
        rows.append(",".join(cells.values()))
    return "\n".join([header, *rows]) + "\n"


def prepared(folder: Path) -> list[str]:
    """Files that the commands of the page name; these commands."""
    imports, *others = blocks("sh")
    [sample], [asked] = blocks("csv"), blocks("jsonl")
    (folder / "clicks.csv").write_text(clicks(sample))
    (folder / "rows.jsonl").write_text(asked)
    (folder / ".venv").symlink_to(sys.prefix)
    return [imports, *others]


def run(folder: Path, commands: str) -> list[subprocess.CompletedProcess[str]]:
    found = []
    for command in commands.splitlines():
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False, timeout=240
        )
        assert done.returncode == 0, (command, done.stderr)
        found.append(done)
    return found


def wanted_values() -> str:
    """The proposed values with the features that the page puts in the place of the guessed ones."""
    proposed, wanted = blocks("yaml")
    return proposed.partition("features:")[0] + wanted


def test_an_import_proposes_what_the_page_shows_and_its_columns_have_the_features_of_the_page(tmp_path: Path) -> None:
    [imported] = run(tmp_path, prepared(tmp_path)[0])

    assert f"{ROWS} of {ROWS} rows are in 2 hours" in imported.stdout
    file = tmp_path / "hours" / "values.yaml"
    assert file.read_text() == blocks("yaml")[0]

    file.write_text(wanted_values())
    values = load_values([file], None)
    check_columns(values)
    assert values.features is not None
    assert {"price_range", "user_device"} < values.features.root.keys()


# test_readme.py leads the same way from a CSV file to answers, and test_rows.py has these kinds of features.
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_the_page_leads_from_a_csv_file_to_answers(tmp_path: Path) -> None:
    imports, up, ask, request, down = prepared(tmp_path)
    [asked] = blocks("jsonl")
    file = tmp_path / "hours" / "values.yaml"
    run(tmp_path, imports)

    # Only the ports are not as written: tests run side by side.
    ports = values_for(tmp_path, [0], "20200401/00", "20200401/00")
    rest = {key: ports[key] for key in ports.keys() - {"data", "trainer"}}
    rest["trainer"] = {"config": {**ports["trainer"]["config"], "batchSize": 32, "epochs": 8}}
    file.write_text(wanted_values() + yaml.safe_dump(rest))
    port = ports["serving"]["config"]["port"]
    try:
        _, scored = run(tmp_path, up)
        [answered] = run(tmp_path, ask)
        [curl] = run(tmp_path, request.replace("8400", str(port)))
    finally:
        [ended] = run(tmp_path, down)

    assert len(scored.stdout.splitlines()) == ROWS // 2
    assert f"{ROWS // 2} rows, {ROWS // 2} shows" in scored.stderr
    assert "was not trained on these rows" in scored.stderr
    auc = re.search(r"AUC (0\.\d+)", scored.stderr)
    assert auc is not None
    assert float(auc[1]) > 0.6
    assert len(answered.stdout.splitlines()) == len(asked.splitlines()) == 2
    answer = json.loads(curl.stdout)
    assert answer.keys() == {"predictions", "model_version"}
    assert 0 < answer["predictions"][0] < 1
    assert "processes of " in ended.stdout
