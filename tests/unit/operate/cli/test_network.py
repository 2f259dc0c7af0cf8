import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from elastic_ctr.config.own_network import OwnNetwork
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.cli import network as module
from elastic_ctr.operate.cli.main import build
from elastic_ctr.operate.local.network_check import CheckRefused, Trial

SOURCE = "def logit(inputs, settings):\n    return inputs.pooled[:, :1]\n"
TRIAL = Trial(
    parameters=[{"name": "fc0.w", "shape": [12, 8], "values": 96}, {"name": "fc0.b", "shape": [8], "values": 8}],
    unchanged=["fc0.b"],
    records=20512,
    training_microseconds=12.34,
    max_abs_diff=1.2e-7,
    prediction_microseconds=1.26,
)


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Values]:
    """What was tried."""
    given: list[Values] = []

    def try_network(values: Values) -> Trial:
        given.append(values)
        return TRIAL

    monkeypatch.setattr(module, "try_network", try_network)
    return given


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    Path("my_network.py").write_text(SOURCE)
    data = {"source": {"url": "file:///logs"}, "start": "20200401/00", "slots": ["a"]}
    Path("values.yaml").write_text(yaml.safe_dump({"data": data}))
    Path("own.yaml").write_text(
        yaml.safe_dump({"data": data, "model": {"network": {"file": "my_network.py", "settings": {"a": 1}}}})
    )

    def invoke(*arguments: str) -> Any:
        return CliRunner().invoke(build("network"), ["network", "check", *arguments])

    return invoke


def test_the_file_takes_the_place_of_the_network_of_the_values_and_keeps_its_settings(
    run: Any, tried: list[Values]
) -> None:
    Path("other.py").write_text(SOURCE + "# other\n")

    assert run("other.py", "-f", "own.yaml").exit_code == 0
    assert run("-f", "own.yaml").exit_code == 0

    assert [each.model.network for each in tried] == [
        OwnNetwork(source=SOURCE + "# other\n", settings={"a": 1}),
        OwnNetwork(source=SOURCE, settings={"a": 1}),
    ]


def test_the_result_of_a_check_is_a_table_and_a_sentence(run: Any, tried: list[Values]) -> None:
    shown = run("my_network.py", "-f", "values.yaml").stdout

    assert "fc0.w" in shown
    assert "12 x 8" in shown
    assert "note: fc0.b did not change in 20,512 records" in shown
    assert (
        "my_network.py can be trained and served: serving scores as training does, largest difference 1.2e-07; a record takes 12.3 us "
        "to train and 1.3 us to predict, on one thread"
    ) in shown


def test_the_result_of_a_check_with_json_is_one_object(run: Any, tried: list[Values]) -> None:
    assert json.loads(run("my_network.py", "-f", "values.yaml", "--json").stdout) == {
        "ok": True, "parameters": TRIAL.parameters, "values": 104, "unchanged": ["fc0.b"], "records": 20512,
        "trainingMicroseconds": 12.34, "maxAbsDiff": 1.2e-7, "predictionMicroseconds": 1.26,
    }  # fmt: skip


def test_a_network_that_cannot_be_used_is_refused_with_1_under_the_name_of_its_file(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Values) -> Trial:
        raise CheckRefused("model.network.source line 7 raises ValueError: no")

    monkeypatch.setattr(module, "try_network", refuse)

    said = run("my_network.py", "-f", "values.yaml")
    as_json = run("my_network.py", "-f", "values.yaml", "--json")

    assert (said.exit_code, said.stderr) == (1, "my_network.py line 7 raises ValueError: no\n")
    assert (as_json.exit_code, json.loads(as_json.stdout)) == (
        1,
        {"ok": False, "reason": "my_network.py line 7 raises ValueError: no"},
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-f", "values.yaml"), "model.network is deepfm, which is built in; name the FILE of a network of your own"),
        (("absent.py", "-f", "values.yaml"), "absent.py: No such file or directory"),
        (("values.yaml", "-f", "values.yaml"), "model.network.source: "),
        (("my_network.py", "-f", "absent.yaml"), "absent.yaml cannot be read"),
    ],
    ids=str,
)
def test_values_that_cannot_be_used_end_with_2(
    run: Any, tried: list[Values], arguments: tuple[str, ...], words: str
) -> None:
    done = run(*arguments)

    assert done.exit_code == 2
    assert words in done.stderr
    assert tried == []
