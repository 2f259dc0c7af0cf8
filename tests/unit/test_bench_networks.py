"""When a comparison of training is refused, and what its ratios are of. Nothing here trains."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from bench import training_networks
from bench.method import Plan, Results
from bench.training_networks import Sides, measure_networks
from bench.training_pipeline import between

from elastic_ctr.config.networks import NETWORKS


def run_of(*, auc: float = 0.7, cores: float = 2.0, speed: float = 100.0) -> dict[str, Any]:
    return {"auc": auc, "cores": cores, "recordsPerSecond": speed}


@dataclass
class Fixed(Sides):
    """Runs that are given."""

    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)

    def _process(self, module: str, spec: dict[str, Any]) -> dict[str, Any]:
        self.started.append(spec.get("feed", module))
        return {**run_of(), **self.answers.get(spec.get("feed", module), {})}


@pytest.fixture
def sides(monkeypatch: pytest.MonkeyPatch) -> Fixed:
    monkeypatch.setattr(training_networks, "pipeline", lambda *_, **__: 50.0)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    return Fixed("deepfm", Path(), 1000)


def test_a_run_of_the_pipeline_is_compared_with_the_mean_of_its_neighbours() -> None:
    assert between([30.0, 50.0], [10.0, 20.0, 5.0]) == [2.0, 4.0]


def test_the_peer_is_fed_in_its_faster_way(sides: Fixed) -> None:
    sides.answers = {"tensors": {"recordsPerSecond": 300.0}}

    sides.run(1)

    assert sides.feed == "tensors"
    assert sides.started[-4:] == ["bench.training_networks", "tensors"] * 2


def test_a_peer_that_learns_less_is_refused(sides: Fixed) -> None:
    sides.answers = {"dataset": {"auc": 0.6}, "tensors": {"auc": 0.6}}

    with pytest.raises(RuntimeError, match=r"AUC 0\.7000, of the peer 0\.6000"):
        sides.run(1)


def test_a_machine_with_other_work_is_refused_unless_the_run_is_quick(sides: Fixed) -> None:
    sides.answers = {"dataset": {"cores": 1.0}, "tensors": {"cores": 1.0}}

    sides.run(1, anyhow=True)
    with pytest.raises(RuntimeError, match="had 50% of the cores"):
        sides.run(1)


def test_a_network_that_cannot_be_measured_does_not_keep_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = []

    def measure(name: str, *_: object) -> None:
        if name == "lr":
            raise RuntimeError("lr: the machine does other work")
        measured.append(name)

    monkeypatch.setattr(training_networks, "write", lambda *_: None)
    monkeypatch.setattr(training_networks, "measure_network", measure)

    with pytest.raises(SystemExit, match="not measured: lr;"):
        measure_networks(Plan(only="in the pipeline ÷ plain Paddle"), Results(tmp_path / "r.json"), 10)

    assert measured == [name for name in NETWORKS if name != "lr"]
    assert "lr: the machine does other work" in capsys.readouterr().err
