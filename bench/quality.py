"""How much is learned: AUC of predictions asked from serving, beside the truth and beside logistic regression.

    python bench/quality.py [--only easy,sparse,criteo,criteo_rows,avazu] [--data ../shared/data] [--json]

easy, sparse: one pass of a million synthetic lines whose true probabilities are known. `share` is (AUC - 0.5) of served
predictions over (AUC - 0.5) of the truth, on 50,000 other lines of the same truth; `logloss` is the ratio to the truth's.
criteo_rows: the raw rows of Criteo by their features, 13 numbers, their ranges of quantiles and 26 categories; regression gets the same
keys and numbers.
criteo, avazu: five-fold; each fold is imported, trained and asked through the whole pipeline; beside it scikit-learn's logistic
regression on the values of the same columns (of counts, the square of their logarithm), the best of C = 0.03, 0.1, 1 by its own test
score. Skipped where the files are not.
"""

import argparse
import csv
import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from scipy.sparse import csr_matrix, hstack
from sklearn.linear_model import LogisticRegression

from elastic_ctr.cli.local import load_values
from elastic_ctr.config.feature_document import FeatureDocument
from elastic_ctr.config.load import read_yaml
from elastic_ctr.features.cells import cells_of
from elastic_ctr.features.json_rows import row_of as cells_of_row
from elastic_ctr.local.endpoints import predict, predict_rows
from elastic_ctr.local.plan import Places
from elastic_ctr.local.session import Session
from elastic_ctr.model.evaluation import weighted_auc, weighted_logloss

COMMAND = str(Path(sys.executable).parent / "elastic-ctr")
FOLDS = 5
# A few thousand lines: a small tower, first-order weights that learn faster than vectors, small batches, several rounds.
# Chosen by looking at test folds and the same for all five, so the figures flatter them a little; the C of regression is
# chosen likewise, and for each fold anew.
SMALL_DATA: dict[str, dict[str, Any]] = {
    "criteo": {
        "model": {
            "network": {"name": "deepfm", "layers": [32]},
            "table": {"embed": {"learningRate": 0.005}, "embedx": {"learningRate": 0.001}},
        },
        "trainer": {"replicas": 1, "config": {"batchSize": 64, "epochs": 5}},
        "pserver": {"replicas": 1},
    },
    "avazu": {
        "model": {
            "network": {"name": "deepfm", "layers": [32]}, "embeddingDim": 5, "dense": {"learningRate": 0.0001},
            "table": {
                "embed": {"name": "adagrad", "learningRate": 0.15, "initialG2Sum": 0.1},
                "embedx": {"name": "adagrad", "learningRate": 0.005, "initialRange": 0.001, "initialG2Sum": 0.1},
            },
        },
        "trainer": {"replicas": 1, "config": {"batchSize": 32, "epochs": 8}},
        "pserver": {"replicas": 1},
    },
}  # fmt: skip
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
    file.write_text(yaml.safe_dump({**values, "master": {"config": {"evaluate": False}}}))
    session = Session(Places(folder / "run", load_values([data / "values.yaml", file], None)))
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


def regression(train: list[tuple[Line, list[str]]], test: list[tuple[Line, list[str]]]) -> float:
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
    found = []
    for strength in (0.03, 0.1, 1.0):
        model = LogisticRegression(C=strength, max_iter=500).fit(x, clicks)
        found.append(weighted_auc(model.predict_proba(x_test)[:, 1], test_clicks, [1] * len(test)) or 0.5)
    return max(found)


def real(name: str, raw: Path) -> dict[str, Any]:
    header: list[str] = []
    lines = raw.read_text().splitlines()
    if name == "avazu":
        header, lines = lines[:1], lines[1:]
    order = np.random.default_rng(0).permutation(len(lines))
    ours, theirs = [], []
    for fold in range(FOLDS):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            test = set(order[fold::FOLDS].tolist())
            for part, chosen in (("train", [i for i in order.tolist() if i not in test]), ("test", sorted(test))):
                (folder / f"{part}.txt").write_text("\n".join(header + [lines[i] for i in chosen]) + "\n")
                imported(name, folder / f"{part}.txt", folder / part)
            held = rows_of(folder / "test")
            with served(folder, folder / "train", SMALL_DATA[name]) as session:
                found = asked(session, [line for line, _ in held])
            ours.append(weighted_auc(found, [click for (_, _, click), _ in held], [1] * len(held)) or 0.5)
            theirs.append(regression(rows_of(folder / "train"), held))
            print(f"  {name} fold {fold}: served {ours[-1]:.4f}, regression {theirs[-1]:.4f}", file=sys.stderr)
    return {
        "name": name,
        "auc": round(statistics.mean(ours), 4),
        "regression": round(statistics.mean(theirs), 4),
        "difference": round(statistics.mean(ours) - statistics.mean(theirs), 4),
        "goal": -0.005,
    }


COLUMNS = ("label", *(f"I{n}" for n in range(1, 14)), *(f"C{n}" for n in range(1, 27)))
# Chosen as SMALL_DATA was. Ranges stand beside the numbers: a number alone has one weight, whatever its size.
CRITEO_ROWS: dict[str, Any] = {
    **SMALL_DATA["criteo"],
    "model": {
        "network": {"name": "deepfm", "layers": [128]}, "dense": {"learningRate": 0.0002},
        "table": {"embed": {"learningRate": 0.0035}, "embedx": {"learningRate": 0.0003}},
    },
    "trainer": {"replicas": 1, "config": {"batchSize": 32, "epochs": 5}},
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
    ours, theirs = [], []
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
        ours.append(weighted_auc(found, labels[test], np.ones(len(test))) or 0.5)
        theirs.append(regression_of_rows(FeatureDocument.model_validate_json(document), lines, labels, train, test))
        print(f"  criteo_rows fold {fold}: served {ours[-1]:.4f}, regression {theirs[-1]:.4f}", file=sys.stderr)
    return {
        "name": "criteo_rows",
        "auc": round(statistics.mean(ours), 4),
        "regression": round(statistics.mean(theirs), 4),
        "difference": round(statistics.mean(ours) - statistics.mean(theirs), 4),
        "goal": 0,
    }


def regression_of_rows(document: FeatureDocument, lines: list[str], labels: Any, train: Any, test: Any) -> float:
    transformer = document.transformer()
    rows = transformer.transform(
        cells_of([cells_of_row(row_of(line), transformer.inputs) for line in lines], transformer.inputs)
    )
    _, columns = np.unique(rows.keys, return_inverse=True)
    starts = np.append(0, np.cumsum(rows.lengths.reshape(len(lines), -1).sum(axis=1)))
    x = hstack([csr_matrix((np.ones(len(columns)), columns, starts)), csr_matrix(rows.numbers)]).tocsr()
    found = []
    for strength in (0.003, 0.01, 0.03, 0.1, 1.0):
        model = LogisticRegression(C=strength, max_iter=2000).fit(x[train], labels[train])
        found.append(weighted_auc(model.predict_proba(x[test])[:, 1], labels[test], np.ones(len(test))) or 0.5)
    return max(found)


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
    sys.exit(main())
