"""How much is learned: AUC of predictions asked from serving, beside the truth and beside logistic regression.

    python bench/quality.py [--only easy,sparse,criteo,criteo_rows,avazu] [--data ../shared/data] [--json]

easy, sparse: one pass of a million synthetic lines whose true probabilities are known. `share` is (AUC - 0.5) of served
predictions over (AUC - 0.5) of the truth, on 50,000 other lines of the same truth; `logloss` is the ratio to the truth's.
criteo_rows: the raw rows of Criteo by their features, 13 numbers, their ranges of quantiles and 26 categories; regression gets the same
keys and numbers.
criteo, avazu: five-fold; each fold is imported, trained and asked through the whole pipeline, with the default settings; beside it
scikit-learn's logistic regression on the values of the same columns (of counts, the square of their logarithm). Of six C the best one is
taken by the test score itself, for AUC and for logloss, which flatters the regression. `calibration` is predicted / observed CTR over the
rows held out, `deciles` that of each tenth by score. Skipped where the files are not.
"""

import argparse
import csv
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.sparse import csr_matrix, hstack
from sklearn.linear_model import LogisticRegression

from bench.method import ending
from elastic_ctr.config.feature_document import FeatureDocument
from elastic_ctr.config.load import read_yaml
from elastic_ctr.formats.cells import cells_of
from elastic_ctr.formats.json_rows import row_of as cells_of_row
from elastic_ctr.operate.cli.given_values import load_values
from elastic_ctr.operate.local.endpoints import predict, predict_rows
from elastic_ctr.operate.local.plan import RunPlaces
from elastic_ctr.operate.local.session import Session
from elastic_ctr.training.model.evaluation import quality_of_scores, weighted_auc, weighted_logloss

COMMAND = str(Path(sys.executable).parent / "elastic-ctr")
FOLDS = 5
# What is asked of a line, its show and click; of a row it is JSON.
Line = tuple[str, int, int]


def command(*words: str) -> None:
    subprocess.run([COMMAND, *words], check=True, capture_output=True)


def lines_of(folder: Path) -> list[Line]:
    """(features, show, click) of every line of a tree of hours."""
    found = []
    for part in sorted(folder.glob("2*/*/part-*")):
        for line in part.read_text().splitlines():
            show, click, features = (*line.split(" ", 2), "")[:3]
            found.append((features, int(show), int(click)))
    return found


def rows_of(folder: Path) -> list[tuple[Line, list[str]]]:
    """Every row of an imported tree, as it is asked and as words for a regression."""
    values = read_yaml(folder / "values.yaml")
    data, features = values["data"], values["features"]
    dialect: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if data["format"] == "tsv" else {}
    found = []
    for part in sorted(folder.glob("2*/*/part-*")):
        with part.open(newline="") as lines:
            for row in csv.DictReader(lines, fieldnames=data.get("columns"), **dialect):
                given: dict[str, Any] = {}
                words = []
                for name, feature in features.items():
                    cell = row[feature.get("column", name)]
                    if not cell:
                        continue
                    number = float(cell) if feature["type"] == "numeric" else None
                    given[feature.get("column", name)] = cell if number is None else number
                    words.append(f"{name}={cell if number is None or number <= 2 else int(math.log(number) ** 2)}")
                found.append(((json.dumps(given), 1, int(row[data["label"]])), words))
    return found


@contextmanager
def served(folder: Path, data: Path, values: dict[str, Any]) -> Iterator[Session]:
    """Everything trained and live."""
    file = folder / "values.yaml"
    file.write_text(yaml.safe_dump(values))
    session = Session(RunPlaces(folder / "run", load_values([data / "values.yaml", file], None)))
    with session.running():
        while True:
            session.look()
            session.raise_for_problems()
            if session.finished():
                break
        yield session


def asked(session: Session, lines: list[Line]) -> list[float]:
    found: list[float] = []
    for start in range(0, len(lines), 2000):
        found += predict(session.places.serving, "ctr", [line[0] for line in lines[start : start + 2000]])[0]
    return found


def synthetic(preset: str, rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command("synth", "--hours", "1", "--rows", str(rows), "--seed", "1", "--preset", preset, str(folder / "train"))
        command(
            "synth", "--hours", "1", "--rows", "50000", "--seed", "2", "--truth-seed", "1", "--preset", preset,
            str(folder / "held"),
        )  # fmt: skip
        lines = lines_of(folder / "held")
        truth = [
            float(p)
            for part in sorted((folder / "held" / "truth").glob("*/*/part-*"))
            for p in part.read_text().split()
        ]
        with served(folder, folder / "train", {}) as session:
            found = asked(session, lines)
    clicks, shows = [line[2] for line in lines], [line[1] for line in lines]
    auc, best = weighted_auc(found, clicks, shows) or 0.5, weighted_auc(truth, clicks, shows) or 0.5
    return {
        "name": preset,
        "auc": round(auc, 4),
        "truth": round(best, 4),
        "share": round((auc - 0.5) / (best - 0.5), 4),
        "goal": 0.95 if preset == "easy" else 0.80,
        "logloss": round(weighted_logloss(found, clicks, shows) / weighted_logloss(truth, clicks, shows), 4),
    }


def imported(name: str, raw: Path, out: Path) -> None:
    if name == "criteo":
        command("import", "criteo", str(raw), str(out))
    else:
        fields = "C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,"
        fields += "device_model,device_type,device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
        command("import", "csv", str(raw), "--label", "click", "--fields", fields, str(out))


@dataclass
class Folds:
    """Predictions of ours and of the regressions, by its C, over the rows that each fold held out."""

    clicks: list[int] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)
    aucs: list[float] = field(default_factory=list)
    loglosses: list[float] = field(default_factory=list)
    theirs: list[tuple[float, float]] = field(default_factory=list)

    def add(self, name: str, found: Sequence[float], clicks: Sequence[int], theirs: tuple[float, float]) -> None:
        """`theirs`: the best AUC and the best logloss of the regressions."""
        self.clicks.extend(clicks)
        self.ours.extend(found)
        self.aucs.append(weighted_auc(found, clicks, [1] * len(clicks)) or 0.5)
        self.loglosses.append(weighted_logloss(found, clicks, [1] * len(clicks)))
        self.theirs.append(theirs)
        said = f"served {self.aucs[-1]:.4f} {self.loglosses[-1]:.4f}, regression {theirs[0]:.4f} {theirs[1]:.4f}"
        print(f"  {name} fold {len(self.aucs) - 1}: {said}", file=sys.stderr)

    def result(self, name: str) -> dict[str, Any]:
        auc, logloss = statistics.mean(self.aucs), statistics.mean(self.loglosses)
        their_auc, their_logloss = (statistics.mean(each) for each in zip(*self.theirs, strict=True))
        quality = quality_of_scores(self.ours, self.clicks, [1] * len(self.clicks))
        assert quality is not None
        deciles = [each.predicted_ctr / each.observed_ctr for each in quality.deciles if each.observed_ctr]
        return {
            "name": name,
            "auc": round(auc, 4),
            "regression": round(their_auc, 4),
            "difference": round(auc - their_auc, 4),
            "goal": -0.005,
            "logloss": round(logloss, 4),
            "regressionLogloss": round(their_logloss, 4),
            "loglossRatio": round(logloss / their_logloss, 4),
            "loglossGoal": 1.03,
            "calibration": round(quality.calibration or 0, 4),
            "deciles": [round(each, 3) for each in deciles],
        }


def regression(train: list[tuple[Line, list[str]]], test: list[tuple[Line, list[str]]]) -> tuple[float, float]:
    """The best AUC and the best logloss on the test rows, over C."""
    names: dict[str, int] = {}

    def matrix(lines: list[tuple[Line, list[str]]], *, learn: bool) -> csr_matrix:
        rows, columns = [], []
        for number, (_, words) in enumerate(lines):
            for token in words:
                column = names.setdefault(token, len(names)) if learn else names.get(token)
                if column is not None:
                    rows.append(number)
                    columns.append(column)
        return csr_matrix((np.ones(len(rows)), (rows, columns)), shape=(len(lines), max(len(names), 1)))

    x, clicks = matrix(train, learn=True), [click for (_, _, click), _ in train]
    x_test, test_clicks = matrix(test, learn=False), [click for (_, _, click), _ in test]
    return best_regression(x, clicks, x_test, test_clicks)


def best_regression(x: Any, clicks: Any, x_test: Any, test_clicks: Any) -> tuple[float, float]:
    aucs, loglosses = [], []
    for strength in (0.003, 0.01, 0.03, 0.1, 0.3, 1.0):
        model = LogisticRegression(C=strength, max_iter=2000).fit(x, clicks)
        found = model.predict_proba(x_test)[:, 1]
        aucs.append(weighted_auc(found, test_clicks, np.ones(len(found))) or 0.5)
        loglosses.append(weighted_logloss(found, test_clicks, np.ones(len(found))))
    return max(aucs), min(loglosses)


def real(name: str, raw: Path) -> dict[str, Any]:
    header: list[str] = []
    lines = raw.read_text().splitlines()
    if name == "avazu":
        header, lines = lines[:1], lines[1:]
    order = np.random.default_rng(0).permutation(len(lines))
    folds = Folds()
    for fold in range(FOLDS):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            test = set(order[fold::FOLDS].tolist())
            for part, chosen in (("train", [i for i in order.tolist() if i not in test]), ("test", sorted(test))):
                (folder / f"{part}.txt").write_text("\n".join(header + [lines[i] for i in chosen]) + "\n")
                imported(name, folder / f"{part}.txt", folder / part)
            held = rows_of(folder / "test")
            with served(folder, folder / "train", {}) as session:
                found = asked(session, [line for line, _ in held])
            folds.add(name, found, [click for (_, _, click), _ in held], regression(rows_of(folder / "train"), held))
    return folds.result(name)


COLUMNS = ("label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27)))
# Ranges stand beside the numbers: a number alone has one weight, whatever its size.
CRITEO_ROWS: dict[str, Any] = {
    "features": {
        **{name: {"type": "numeric", "transform": ["log1p", "standardize"]} for name in COLUMNS[1:14]},
        **{
            f"{name}_range": {"type": "bucketized", "column": name, "boundaries": {"quantiles": 10}}
            for name in COLUMNS[1:14]
        },
        **{name: {"type": "categorical"} for name in COLUMNS[14:]},
    },
}  # fmt: skip


def row_of(line: str) -> dict[str, Any]:
    """A line as a request has it."""
    cells = dict(zip(COLUMNS, line.split("\t"), strict=True))
    return {name: float(text) if name[0] == "I" else text for name, text in cells.items() if text and name != "label"}


def real_rows(raw: Path, values: dict[str, Any] = CRITEO_ROWS) -> dict[str, Any]:
    """No import: the file as it is, by what its columns mean."""
    lines = raw.read_text().splitlines()
    order = np.random.default_rng(0).permutation(len(lines))
    labels = np.array([int(line.partition("\t")[0]) for line in lines])
    folds = Folds()
    for fold in range(FOLDS):
        test = order[fold::FOLDS]
        train = order[~np.isin(order, test)]
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            hour = folder / "train" / "20200401" / "00"
            hour.mkdir(parents=True)
            (hour / "part-0").write_text("".join(f"{lines[i]}\n" for i in train.tolist()))
            (hour / "donefile").touch()
            data = {
                "source": {"url": f"file://{folder}/train"}, "start": "20200401/00", "end": "20200401/00",
                "format": "tsv", "label": "label", "columns": list(COLUMNS),
            }  # fmt: skip
            (folder / "train" / "values.yaml").write_text(yaml.safe_dump({"data": data}))
            with served(folder, folder / "train", values) as session:
                serving = session.places.serving
                found = predict_rows(serving, "ctr", [row_of(lines[i]) for i in test.tolist()])[0]
                document = next(
                    (folder / "run" / "store" / "output" / "ctr_model").glob("*/features.json")
                ).read_bytes()
        theirs = regression_of_rows(FeatureDocument.model_validate_json(document), lines, labels, train, test)
        folds.add("criteo_rows", found, labels[test].tolist(), theirs)
    return folds.result("criteo_rows")


def regression_of_rows(
    document: FeatureDocument, lines: list[str], labels: Any, train: Any, test: Any
) -> tuple[float, float]:
    transformer = document.transformer()
    rows = transformer.transform(
        cells_of([cells_of_row(row_of(line), transformer.inputs) for line in lines], transformer.inputs)
    )
    _, columns = np.unique(rows.keys, return_inverse=True)
    starts = np.append(0, np.cumsum(rows.lengths.reshape(len(lines), -1).sum(axis=1)))
    x = hstack([csr_matrix((np.ones(len(columns)), columns, starts)), csr_matrix(rows.numbers)]).tocsr()
    return best_regression(x[train], labels[train], x[test], labels[test])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="easy,sparse,criteo,criteo_rows,avazu")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    results = []
    files = {"criteo": given.data / "criteo" / "train.csv", "avazu": given.data / "avazu" / "small3.train.csv"}
    for name in given.only.split(","):
        if name in ("easy", "sparse"):
            results.append(synthetic(name, given.rows))
        elif name == "criteo_rows" and files["criteo"].exists():
            results.append(real_rows(files["criteo"]))
        elif name in files and files[name].exists():
            results.append(real(name, files[name]))
        else:
            print(f"{name}: its file is not in {given.data}; left out", file=sys.stderr)
            continue
        print(
            json.dumps(results[-1]) if given.json else "  ".join(f"{k} {v}" for k, v in results[-1].items()), flush=True
        )
    return 0


if __name__ == "__main__":
    sys.exit(ending(main))
