"""The gain by `elastic-ctr tune` on real rows: served predictions with the default and with the tuned values, beside regression.

    python -m bench.tune [--only criteo,avazu] [--minutes 20] [--trials 60] [--hours 2] [--data ../shared/data] [--write]

One random split: 80 % of the rows are hours to train and to tune with, 20 % are asked of serving and were never seen by the search. The
whole pipeline is trained with the default values, and with the tuned ones behind them. Beside it scikit-learn's logistic regression as in
bench/quality.py: of six C the best one by the test score itself, which flatters it. --write puts the table into docs/tuning.md.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench.method import ending
from bench.quality import COMMAND, Line, asked, command, regression, rows_of, served
from elastic_ctr.training.model.evaluation import weighted_auc, weighted_logloss

PAGE = Path(__file__).parents[1] / "docs" / "tuning.md"
FILES = {"criteo": "criteo/train.csv", "avazu": "avazu/small3.train.csv"}
AVAZU = "C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,app_category,device_id,device_ip,device_model,device_type,"
AVAZU += "device_conn_type,C14,C15,C16,C17,C18,C19,C20,C21"
TEST_SHARE = 0.2


def imported(name: str, raw: Path, out: Path, *more: str) -> None:
    if name == "criteo":
        command("import", "criteo", *more, str(raw), str(out))
    else:
        command("import", "csv", *more, str(raw), "--label", "click", "--fields", AVAZU, str(out))


def figures(folder: Path, values: dict[str, Any], held: list[Line]) -> tuple[float, float]:
    """AUC and logloss of served predictions after training with these values."""
    folder.mkdir()
    with served(folder, folder.parent / "train", values) as session:
        found = asked(session, held)
    clicks, shows = [click for _, _, click in held], [1] * len(held)
    return weighted_auc(found, clicks, shows) or 0.5, weighted_logloss(found, clicks, shows)


def measured(name: str, raw: Path, given: argparse.Namespace) -> dict[str, Any]:
    lines = raw.read_text().splitlines()
    header, lines = (lines[:1], lines[1:]) if name == "avazu" else ([], lines)
    order = np.random.default_rng(0).permutation(len(lines))
    count = round(len(lines) * TEST_SHARE)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        for part, chosen in (("test", order[:count]), ("train", order[count:])):
            (folder / f"{part}.txt").write_text("\n".join(header + [lines[i] for i in chosen.tolist()]) + "\n")
        rows = -(-(len(lines) - count) // given.hours)
        imported(name, folder / "train.txt", folder / "train", "--rows-per-hour", str(rows))
        imported(name, folder / "test.txt", folder / "test")
        tuned = folder / "tuned.yaml"
        words = [
            COMMAND, "tune", "-f", str(folder / "train" / "values.yaml"), "-o", str(tuned), "--scratch", str(folder / "scratch"),
            "--minutes", str(given.minutes), *([] if given.trials is None else ["--trials", str(given.trials)]), "--json",
        ]  # fmt: skip
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
        report = json.loads(done.stdout)
        print(tuned.read_text(), file=sys.stderr)
        held = rows_of(folder / "test")
        return {
            "name": name, "train": len(lines) - count, "test": count, "hours": given.hours, "trials": len(report["trials"]),
            "default": figures(folder / "default", {}, [line for line, _ in held]),
            "tuned": figures(folder / "tuned", yaml.safe_load(tuned.read_text()) or {}, [line for line, _ in held]),
            "regression": regression(rows_of(folder / "train"), held),
            "values": report["values"], "winner": report["winner"]["mean"], "baseline": report["baseline"]["mean"],
        }  # fmt: skip


def table(results: list[dict[str, Any]], minutes: float) -> str:
    lines = [
        "| data | rows to train, to test | trials | default: AUC / logloss | tuned | tuned logistic regression |",
        "|---|---|---|---|---|---|",
    ]
    for each in results:
        cells = [f"{each[name][0]:.4f} / {each[name][1]:.4f}" for name in ("default", "tuned", "regression")]
        lines.append(
            f"| {each['name']} | {each['train']:,}, {each['test']:,} | {each['trials']} | {' | '.join(cells)} |"
        )
    hours = results[0]["hours"]
    about = f"{hours} hours, {minutes:g} minutes of search. Measured {datetime.now(timezone.utc):%Y-%m-%d} by bench/tune.py."
    return "\n".join([*lines, "", about])


def page(text: str, made: str) -> str:
    """The text of docs/tuning.md with this table."""
    place = re.compile(r"(<!-- tune: .*? -->\n).*?(<!-- end of tune -->)", re.DOTALL)
    if not place.search(text):
        raise ValueError("docs/tuning.md has no place for the table: <!-- tune: … --> <!-- end of tune -->")
    return place.sub(lambda found: f"{found[1]}\n{made}\n\n{found[2]}", text)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(FILES))
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--trials", type=int, help="by default as many as there is time for")
    parser.add_argument("--hours", type=int, default=2)
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--write", action="store_true", help="put the table into docs/tuning.md")
    given = parser.parse_args()
    results = []
    for name in given.only.split(","):
        raw = given.data / FILES[name]
        if not raw.exists():
            print(f"{name}: {raw} is not there; left out", file=sys.stderr)
            continue
        results.append(measured(name, raw, given))
        print(json.dumps(results[-1]), flush=True)
    if not results:
        return 1
    print(table(results, given.minutes))
    if given.write:
        PAGE.write_text(page(PAGE.read_text(), table(results, given.minutes)))
    return 0


if __name__ == "__main__":
    sys.exit(ending(main))
