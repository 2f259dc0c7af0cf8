import json
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from elastic_ctr.jobs.tune.space import Candidate, with_values
from elastic_ctr.operate.cli import tune as module
from elastic_ctr.operate.cli.given_values import load_values
from written_tables import KINDS

HOURS = ["20200401/00", "20200401/01", "20200401/02"]


@pytest.fixture
def values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for hour in HOURS:
        folder = tmp_path / "logs" / hour
        folder.mkdir(parents=True)
        (folder / "part").write_text("".join(f"1 {n % 2} {n + 1}:a\n" for n in range(100)))
        if hour != HOURS[2]:
            (folder / "donefile").touch()
    file = tmp_path / "values.yaml"
    source = {"url": f"file://{tmp_path}/logs"}
    file.write_text(yaml.safe_dump({"data": {"source": source, "start": HOURS[0], "slots": ["a"]}}))
    return file


def call(values: Path, *words: str) -> Result:
    app = typer.Typer()
    app.command()(module.tune)
    return CliRunner().invoke(app, ["-f", str(values), *words])


def refusal(values: Path, *words: str, code: int = 2) -> str:
    done = call(values, *words)
    assert done.exit_code == code, done.output
    return done.stderr.strip().splitlines()[-1]


@pytest.fixture
def optuna_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: object())


def test_without_optuna_the_command_says_how_to_install_it(values: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda _: None)

    assert refusal(values) == (
        "tune needs Optuna, which is not installed: install elastic-ctr's wheel with [tune], or tools/setup tune in a checkout"
    )


@pytest.mark.usefixtures("optuna_is_there")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--keep", "model.embedingDim"], "--keep model.embedingDim is no value that is searched"),
        (["--networks", "lr,deepmf"], "--networks: there is no network 'deepmf'; the networks are deepfm"),
        (["--hours", "20200401/25"], "--hours 20200401/25: end: '20200401/25' names a time that does not exist"),
        (["--validate", "20200401/01..20200401/02"], f"--validate 20200401/01..20200401/02: {HOURS[2]} has no donefile yet; wait, or leave it out"),
        (["--hours", f"{HOURS[0]}..{HOURS[1]}", "--validate", HOURS[1]], f"{HOURS[1]} would be trained and validate, too"),
        (["--validate", HOURS[0]], f"there is no complete hour before {HOURS[0]} to train with; give --hours"),
        (["--hours", "20200402/00..20200402/01"], "has no hour with a donefile from 20200402/00 to 20200402/01"),
    ],
)  # fmt: skip
def test_an_impossible_search_is_refused_before_it_makes_its_folder(
    values: Path, words: list[str], sentence: str
) -> None:
    assert sentence in refusal(values, *words)
    assert not Path("elastic-ctr-tune").exists()


@pytest.mark.usefixtures("optuna_is_there")
def test_a_value_that_set_file_would_hide_is_refused_unless_it_is_kept(
    values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = searched(monkeypatch)
    (tmp_path / "net.py").write_text("def logit(inputs, settings):\n    return inputs.pooled[:, :1]\n")
    network = ("--set-file", "model.network.source=net.py")

    assert refusal(values, *network) == (
        "--set-file model.network.source wins over every values file, so another model.network could not be written to one; give "
        "model.network.file in the values file, or --keep model.network"
    )
    assert not begun

    assert call(values, *network, "--keep", "model.network").exit_code == 130
    [(given, *_)] = begun
    assert given.model.network.name == "own"


@pytest.mark.usefixtures("optuna_is_there")
@pytest.mark.parametrize("changed", [{}, {"model": {"embeddingDim": 5}}, {"model": {"embeddingDim": "five"}}], ids=str)
def test_values_files_that_were_changed_during_the_search_are_one_sentence(
    values: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    pytest.importorskip("optuna", reason="make setup-dev installs it")
    from elastic_ctr.jobs.tune.search import CheckedTrial, Found
    from elastic_ctr.jobs.tune.study import Result

    def search(given: Any, *_: Any, **__: Any) -> Any:
        base = Candidate(given.model, given.trainer.config)
        better = with_values(base, {"name": "lr"}, {"model.dense.learningRate": 0.002})
        results = [
            Result(
                number,
                "complete",
                number == 0,
                better if number else base,
                {"logloss": 0.5 - number / 10, "auc": 0.6},
                1.0,
            )
            for number in range(2)
        ]
        values.write_text(yaml.safe_dump({**yaml.safe_load(values.read_text()), **changed}))
        return Found(results, [CheckedTrial(each, None) for each in results], interrupted=False), base

    monkeypatch.setattr(module, "_search", search)

    done = call(values, "-o", "tuned.yaml")

    sentence = done.stderr.strip().splitlines()[-1]
    if changed:
        assert done.exit_code in (1, 2)
        assert "Traceback" not in done.output
        assert (
            "embeddingDim" in sentence or "the values files before it are not those of the search any more" in sentence
        )
        assert Path("elastic-ctr-tune").exists(), "the search is kept"
    else:
        *_, written, following = done.stderr.strip().splitlines()
        assert (done.exit_code, written) == (0, "tuned.yaml is written; give it as the last -f")
        assert following.startswith(f"next: elastic-ctr local up -f {values} -f tuned.yaml --dir elastic-ctr-tuned")
        assert load_values([values, Path("tuned.yaml")], None).model.network.name == "lr"


@pytest.mark.usefixtures("optuna_is_there")
def test_a_folder_of_something_else_is_left_alone(values: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")

    assert "has files of something else; give another --scratch" in refusal(values, "--scratch", "mine")
    assert (tmp_path / "mine" / "thesis.tex").exists()


def searched(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Searches that were begun; each ends at once, as if interrupted."""
    begun: list[Any] = []

    def search(*given: Any, **_: Any) -> Any:
        begun.append(given)
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_search", search)
    return begun


@pytest.mark.usefixtures("optuna_is_there")
@pytest.mark.parametrize(
    ("words", "trials"),
    [([], 30), (["--minutes", "20"], None), (["--minutes", "20", "--trials", "7"], 7), (["--trials", "7"], 7)],
)
def test_time_alone_bounds_a_search_where_only_minutes_are_given(
    values: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], trials: int | None
) -> None:
    begun = searched(monkeypatch)

    call(values, *words)

    [(_, _, _, trial, *_)] = begun
    assert (trial.most, trial.minutes is None) == (trials, "--minutes" not in words)


@pytest.mark.usefixtures("optuna_is_there")
def test_the_same_search_goes_on_and_another_one_is_refused(values: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = searched(monkeypatch)

    assert call(values).exit_code == 130
    assert call(values, "--trials", "50", "--minutes", "3").exit_code == 130
    assert "has a search of other values, hours or options" in refusal(values, "--networks", "lr")
    given = yaml.safe_load(values.read_text())
    values.write_text(yaml.safe_dump({**given, "model": {"embeddingDim": 5}}))
    assert "has a search of other values, hours or options" in refusal(values)

    first, second = (given[4] for given in begun)
    assert first == second
    assert [one.id for one in first.passes] == HOURS[:1]
    assert first.validated == HOURS[1]


@pytest.mark.usefixtures("optuna_is_there")
def test_a_conversion_that_was_interrupted_is_made_again(values: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = searched(monkeypatch)
    call(values)
    scratch = Path("elastic-ctr-tune")
    (scratch / "data" / "hours.json").unlink()
    (scratch / "data" / "1.txt").write_text("half of it")

    call(values)

    assert json.loads((scratch / "data" / "hours.json").read_text())["passes"][0]["shows"] == 100
    assert begun[0][4] == begun[1][4]


@pytest.mark.usefixtures("optuna_is_there")
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_table_are_trained_in_passes_of_its_commits_in_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.chdir(tmp_path)
    table = KINDS[kind](tmp_path, monkeypatch)
    # So many that their names, as texts, have another order.
    commits = [table.append(*range(100 * number, 100 * number + 100)) for number in range(12)]
    begun = searched(monkeypatch)

    def values_of(start: str, **data: Any) -> Path:
        given = {"source": {"url": table.url}, "start": start, "format": "parquet", "label": "click", **data}
        file = tmp_path / "values.yaml"
        file.write_text(yaml.safe_dump({"data": given, "features": {"id": {"type": "categorical"}}}))
        return file

    def hours(start: str, *words: str, **data: Any) -> Any:
        done = call(values_of(start, **data), *words, "--scratch", f"scratch-{len(begun)}")
        assert done.exit_code == 130, done.output
        return begun[-1][4]

    last_fifth = hours(commits[0])
    assert [(one.id, one.records) for one in last_fifth.passes] == [(f"table/{n:08d}", 100) for n in range(1, 10)]
    assert last_fifth.validated == f"{commits[10]} to {commits[11]}"
    assert [one.records for one in hours(commits[0], splitsPerPass=4).passes] == [400, 400, 100]
    [whole] = hours("earliest").passes
    assert 860 < whole.records < 1_060

    table.compact()
    chosen = hours("earliest", "--validate", f"{commits[8]}..{commits[10]}")
    assert ([one.records for one in chosen.passes], chosen.validation_records) == ([900], 200)
    assert "is of folders of hours, and" in refusal(values_of("earliest"), "--hours", f"{commits[1]}..{commits[2]}")
    for backwards in (f"{commits[8]}..{commits[7]}", commits[8]):
        assert "has no rows behind" in refusal(values_of("earliest"), "--validate", backwards)
