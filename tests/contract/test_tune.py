"""`elastic-ctr tune` with real trials: Paddle, a parameter server each, Optuna's journal."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
import yaml
from deltalake import write_deltalake

import elastic_ctr
from contract.bucket_world import BucketServer
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.operate.cli.given_values import load_values
from elastic_ctr.store.backends import open_store

pytest.importorskip("optuna", reason="make setup-dev installs it")
pytestmark = pytest.mark.timeout(900)
# A search begins in another folder, where a relative PYTHONPATH leads nowhere.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(elastic_ctr.__file__).parents[1])}
PAGE = Path(__file__).parents[2] / "docs" / "tuning.md"


@pytest.fixture(scope="module")
def hours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three hours of lines whose interactions a network can learn."""
    folder = tmp_path_factory.mktemp("hours") / "data"
    command = [
        sys.executable,
        "-m",
        "elastic_ctr",
        "synth",
        "--hours",
        "3",
        "--rows",
        "1500",
        "--seed",
        "1",
        str(folder),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "values.yaml"


class Search:
    """A search in the background, in its own folder. What it says is read as it comes."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.said: list[str] = []
        self.out = folder / "out.json"
        with self.out.open("w") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "elastic_ctr", "tune", *words],
                cwd=folder, stdout=out, stderr=subprocess.PIPE, text=True, start_new_session=True, env=ENVIRONMENT,
            )  # fmt: skip

    def until(self, pattern: str) -> str:
        for line in self._lines():
            if re.search(pattern, line):
                return line
        raise AssertionError(f"it never said {pattern}, but: {self.said}")

    def _lines(self) -> Iterator[str]:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line)
            yield line

    def end(self) -> int:
        for _ in self._lines():
            pass
        return self.process.wait()

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, word: str) -> psutil.Process:
        """The process whose command line has this word, as soon as there is one."""

        def named() -> psutil.Process | None:
            for each in self.children():
                try:
                    if any(word in part for part in each.cmdline()):
                        return each
                except psutil.NoSuchProcess:  # noqa: PERF203 (it may end at any time)
                    continue
            return None

        found: psutil.Process = waited_for(named)
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def search(tmp_path: Path) -> Iterator[Callable[..., Search]]:
    """Begins a search; none outlives its test."""
    begun: list[Search] = []

    def begin(*words: str) -> Search:
        begun.append(Search(tmp_path, *words))
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


Begin = Callable[..., Search]


def waited_for(what: Callable[[], Any]) -> Any:
    ends = time.monotonic() + 120
    while not (found := what()):
        assert time.monotonic() < ends, "it never came to that"
        time.sleep(0.02)
    return found


def test_a_search_survives_a_lost_trial_is_interrupted_and_goes_on_to_its_end(
    hours: Path, tmp_path: Path, search: Begin
) -> None:
    words = [
        "-f",
        str(hours),
        "--networks",
        "lr,deepfm",
        "--scratch",
        "scratch",
        "-o",
        "tuned.yaml",
        "--json",
        "--jobs",
        "1",
    ]
    first = search(*words, "--trials", "5")
    first.until(r"1/5 #0 logloss")
    # A lost parameter server is the end of its trial alone.
    # Paddle writes there when it begins to train.
    waited_for(lambda: [*(tmp_path / "scratch" / "trials" / "1" / "engine").glob("*")])
    first.child("trials/1/pserver.json").kill()
    first.until(r"2/5 #1 has failed: the parameter server has ended")
    first.until(r"3/5 #2 ")
    first.child("trials/3/spec.json")
    running = first.children()

    first.process.send_signal(signal.SIGINT)

    assert first.end() == 130
    assert "stopped; the same command goes on" in first.said[-1]
    psutil.wait_procs(running, timeout=30)
    assert not [each for each in running if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]
    text = (tmp_path / "tuned.yaml").read_text()
    assert "3 trials, stopped before the end" in text
    assert isinstance(yaml.safe_load(text), dict)
    before = json.loads(first.out.read_text())
    assert before["interrupted"]
    assert [(each["trial"], each["state"]) for each in before["trials"]] == [(0, "done"), (1, "failed"), (2, "done")]

    second = search(*words, "--trials", "5")
    second.until("goes on after 3 trials")

    assert second.end() == 0, second.said
    found = json.loads(second.out.read_text())
    assert found["trials"][:3] == before["trials"]
    assert len(found["trials"]) == 5
    assert not (tmp_path / "scratch").exists()
    assert found["trained"]["passes"] == ["20200401/00", "20200401/01"]
    assert found["validated"] == {"with": "20200401/02", "records": 500}
    assert found["baseline"]["isBaseline"]
    # Both were trained with two seeds, or nothing was better.
    if found["winner"]["trial"] != 0:
        assert found["winner"]["mean"]["logloss"] < found["baseline"]["mean"]["logloss"]
        assert found["winner"]["otherSeed"] is not None
    added = yaml.safe_load((tmp_path / "tuned.yaml").read_text())
    assert added == found["values"]
    load_values([hours, tmp_path / "tuned.yaml"], None)


def test_present_values_that_cannot_be_trained_end_the_search_with_the_reason(
    hours: Path, tmp_path: Path, search: Begin
) -> None:
    """They diverge: a step of this size leaves no number, at which Paddle aborts the process."""
    values = tmp_path / "far.yaml"
    values.write_text(yaml.safe_dump({"model": {"dense": {"learningRate": 1e30}}}))

    one = search("-f", str(hours), "-f", str(values), "--trials", "3", "--scratch", "scratch", "-o", "tuned.yaml")

    assert one.end() == 1
    assert re.match(
        r"the present values cannot be trained: (the training diverged|its process was ended by SIGABRT: \S|a prediction is not a number, so)",
        one.said[-1],
    )
    assert not [line for line in one.said if line.startswith("Traceback")]
    assert not (tmp_path / "tuned.yaml").exists()


def test_a_trial_that_takes_too_long_has_failed(hours: Path, tmp_path: Path, search: Begin) -> None:
    one = search("-f", str(hours), "--trials", "2", "--trial-minutes", "0.01", "--scratch", "scratch")

    assert one.end() == 1
    assert "it took longer than 0.01 minutes" in one.said[-1]


def test_the_command_of_the_document_finds_values(hours: Path, tmp_path: Path, search: Begin) -> None:
    [line] = re.findall(r"^\.venv/bin/elastic-ctr tune (-f .*)$", PAGE.read_text(), re.MULTILINE)[:1]
    words = line.replace("--trials 30", "--trials 2").split()
    (tmp_path / "values.yaml").write_text(hours.read_text().replace("file:.", f"file://{hours.parent}"))

    one = search(*words)

    assert one.end() == 0, one.said
    assert any("tuned.yaml is written" in line for line in one.said[-2:])
    assert "validation, the best first" in one.out.read_text()
    load_values([tmp_path / "values.yaml", tmp_path / "tuned.yaml"], None)


@pytest.fixture(params=["bucket", "HDFS"])
def far_away(request: pytest.FixtureRequest) -> StoreConfig:
    """A folder of a real bucket or a real HDFS."""
    if request.param == "HDFS":
        return StoreConfig(url=f"webhdfs://{request.getfixturevalue('hadoop').door}/lake/clicks")
    server: BucketServer = request.getfixturevalue("bucket_server")
    return server.store(server.bucket(), "lake/clicks")


def written_clicks(folder: Path) -> list[Path]:
    """The files of a Delta table of four commits, with folders of partitions whose names are quoted; clicks follow from them."""
    dice = random.Random(1)
    for _ in range(4):
        rows = [
            {"user": f"u{dice.randrange(50)}", "country": country, "click": int(dice.random() < rate)}
            for country, rate in (("de", 0.9), ("a/b ü", 0.1))
            for _ in range(300)
        ]
        write_deltalake(folder / "clicks", pa.Table.from_pylist(rows), mode="append", partition_by=["country"])
    return [each for each in (folder / "clicks").rglob("*") if each.is_file()]


# tests/unit/operate/cli/test_tune.py converts the commits of tables in folders.
@pytest.mark.nightly
def test_a_search_trains_the_commits_of_a_table_far_away_and_validates_with_later_ones(
    tmp_path: Path, search: Begin, far_away: StoreConfig
) -> None:
    store = open_store(far_away)
    for file in written_clicks(tmp_path):
        store.put(file, str(file.relative_to(tmp_path / "clicks")))
    source = {**far_away.model_dump(by_alias=True), "url": f"delta+{far_away.url}"}
    data = {"source": source, "start": "earliest", "format": "parquet", "label": "click"}
    features = {name: {"type": "categorical"} for name in ("user", "country")}
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump({"data": data, "features": features}))

    one = search("-f", str(values), "--validate", "1..3", "--networks", "lr", "--trials", "2", "--json")

    assert one.end() == 0, one.said
    found = json.loads(one.out.read_text())
    assert found["trained"] == {"passes": ["table/00000001"], "records": 1_200, "share": 1}
    assert found["validated"] == {"with": "2 to 3", "records": 1_200}
    # By the users alone it would be 0.5.
    assert found["winner"]["mean"]["auc"] > 0.7
