"""How far equal runs differ: the same pass, learned several times with the same seed.

    python -m bench.spread [--sizes 1000,5000,20000] [--runs 5] [--write]

Training is asynchronous, so two equal runs never give the same model. One pass of lines of a known truth (`elastic-ctr synth --preset easy`) is learned by the trainer's own
engine beside one pserver, as the master would choose, in each run from nothing. With `numbers` the lines have two numbers more, which say nothing of the
clicks: one of mean 50 and up to some thousands, as prices have, and one from 18 to 80; standardised, and as they are (`transform: []`). The figures are
of 50,000 lines that were not trained. --write puts the table into docs/learning.md.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.learning import HELD, PAGE, SEED, measured, written
from bench.page import with_table

SIZES = (1_000, 5_000, 20_000)
KINDS = {
    "categories": "",
    "categories and numbers, standardised": "standardised",
    "categories and numbers as they are": "raw",
}
_LABEL_TOKENS = 4


def numbers(rows: int, dice: np.random.Generator, *, raw: bool) -> npt.NDArray[np.float64]:
    found: npt.NDArray[np.float64] = np.stack([np.exp(dice.normal(3.5, 1, rows)), dice.uniform(18, 80, rows)], axis=1)
    return found if raw else (found - np.array([54.6, 49.0])) / np.array([71.5, 17.9])


def with_numbers(file: Path, target: Path, seed: int, *, raw: bool) -> None:
    """The engine's text with two numbers behind show and click."""
    lines = file.read_text().splitlines()
    drawn = numbers(len(lines), np.random.default_rng([SEED, 5, seed]), raw=raw)
    with target.open("w") as out:
        for line, (first, second) in zip(lines, drawn.tolist(), strict=True):
            *label, keys = line.split(" ", _LABEL_TOKENS)
            out.write(f"{' '.join(label)} 2 {first:.6g} {second:.6g} {keys}\n")


def prepared(plain: Path, folder: Path, kind: str) -> Path:
    if not kind:
        return plain
    folder.mkdir()
    shutil.copy(plain / "slot.conf", folder)
    (folder / "numbers.conf").write_text("price age\n")
    for seed, name in enumerate(("train.txt", "held.txt")):
        with_numbers(plain / name, folder / name, seed, raw=kind == "raw")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="rows of the pass, separated by commas")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the table into docs/learning.md")
    given = parser.parse_args()
    table = [
        "| rows of the pass | columns | AUC | highest less lowest | logloss | highest less lowest |",
        "|---|---|---|---|---|---|",
    ]
    print("\n".join(table), flush=True)
    for rows in map(int, given.sizes.split(",")):
        with tempfile.TemporaryDirectory() as place:
            plain = Path(place) / "plain"
            plain.mkdir()
            truth = written("easy", rows, plain)
            for said, kind in KINDS.items():
                folder = prepared(plain, Path(place) / (kind or "plain"), kind)
                runs = [measured("auto", folder, rows, truth["offset"]) for _ in range(given.runs)]
                figures = []
                for of in ("auc", "logloss"):
                    values = [run[of] for run in runs]
                    figures += [f"{np.mean(values):.4f}", f"{max(values) - min(values):.4f}"]
                table.append(f"| {rows:,} | {said} | {' | '.join(figures)} |")
                print(table[-1], flush=True)
    table += ["", f"{given.runs} equal runs of each row, {HELD:,} lines held out (`python -m bench.spread --write`)."]
    if given.write:
        PAGE.write_text(with_table(PAGE.read_text(), "docs/learning.md", "spread", table))


if __name__ == "__main__":
    main()
