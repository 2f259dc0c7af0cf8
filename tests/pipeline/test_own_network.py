"""A network of the user's own from clicks to predictions, and one that cannot be trained."""

import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from elastic_ctr.operate.cli.snapshot import Snapshot
from elastic_ctr.operate.cli.status_text import stages
from elastic_ctr.operate.local.endpoints import predict
from pipeline.running import TRAINING, Run, merged, values_for

EXAMPLE = Path(__file__).parents[2] / "examples" / "own-network"
ROWS = 3000


def clicks(folder: Path) -> Path:
    """An hour in which the first two slots decide together."""
    dice = random.Random(7)
    hour = folder / "20200401" / "00"
    hour.mkdir(parents=True)
    lines = []
    for _ in range(ROWS):
        one, other, third = (dice.randrange(8) for _ in range(3))
        click = int(dice.random() < (0.6 if (one + other) % 2 else 0.1))
        lines.append(f"1 {click} {1 + one}:a {101 + other}:b {201 + third}:c\n")
    (hour / "part-0").write_text("".join(lines))
    (hour / "donefile").touch()
    return folder


def values_of(data: Path, source: str, **changes: Any) -> dict[str, Any]:
    """Those of the example, over an hour of clicks and with this source."""
    example = yaml.safe_load((EXAMPLE / "values.yaml").read_text())
    network = example["model"]["network"]
    assert network.pop("file") == "my_network.py"
    hour = "20200401/00"
    given = merged(values_for(data, ["a", "b", "c"], hour, hour), example)
    given["model"]["network"] = {"source": source, "settings": network["settings"]}
    return merged(given, changes)


@pytest.mark.timeout(240)
def test_the_example_learns_what_pairs_say_and_serving_answers_it(tmp_path: Path, start: Callable[..., Run]) -> None:
    values = values_of(
        clicks(tmp_path / "data"),
        (EXAMPLE / "my_network.py").read_text(),
        trainer={"replicas": 1, "config": {"batchSize": 32, "epochs": 12}},
        pserver={"replicas": 1},
        model={"table": {"embedx": {"learningRate": 0.02}}},
    )
    run = start(values)

    report = run.finish(200)

    [done] = report["passes"]
    assert (done["records"], done["refused"]) == (ROWS, 0)
    assert done["maxAbsDiff"] < 1e-5
    lines = ["1:a 101:b 201:c", "1:a 102:b 201:c", "2:a 101:b 201:c", "2:a 102:b 201:c"]
    (even, odd, also_odd, also_even), versions = predict(run.places.serving, "ctr", lines)
    assert set(versions) == {report["live"]}
    # No weight of a single key can say this: only pairs can.
    assert min(odd, also_odd) > 0.35 > max(even, also_even)


# tests/contract/test_own_networks.py has the sentence, and test_bad_input.py a role that cannot start.
@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_a_network_that_cannot_be_trained_ends_its_trainers_and_is_told_by_the_status(
    tmp_path: Path, start: Callable[..., Run]
) -> None:
    source = (
        "from paddle import static\ndef logit(inputs, settings):\n"
        "    return static.nn.fc(static.nn.batch_norm(inputs.pooled), 1)\n"
    )
    sentence = "model.network.source line 3 uses batch_norm, whose statistics the parameter servers do not hold"
    run = start(values_of(clicks(tmp_path / "data"), source), only=TRAINING)

    [problem] = run.until(run.session.supervisor.problems, 60, "the trainer ends")
    status = run.until(
        lambda: run.status if run.status.pservers and run.status.pservers[0].error else None,
        60,
        "the status names the error",
    )

    assert "ctr-trainer-0 cannot run" in problem
    assert sentence in problem
    assert sentence in status.pservers[0].error
    assert (status.generation, status.recoveries) == (1, ())
    assert run.session.supervisor.restarts == []
    shown = io.StringIO()
    Console(width=300, file=shown).print(stages(Snapshot(status)))
    assert sentence in shown.getvalue()
