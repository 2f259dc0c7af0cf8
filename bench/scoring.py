"""Rows scored with a version in the store beside the same rows asked of a running serving: both by `elastic-ctr predict`, whole commands.

    python -m bench.scoring [--quick] [--only lines]

Ours: `predict -f VALUES --output DIR` with two processes, which read the file, map the dictionary's parts and write CSV. Theirs:
`predict FILE`, which asks `elastic-ctr serving` with one worker, and a cube-server of one, over HTTP in requests of 512. Both have
the two cores to themselves while they run, and start their processes anew each time; serving and cube-server run already.
Lines are of 26 feasigns, rows of 13 numbers and 26 texts; keys are zipf 1.05, the network is 400-400-400.
"""

import argparse
import csv
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from bench import table as tables
from bench.features import COLUMNS, NUMBERS, TEXTS, features, statistics
from bench.method import FOLDER, Plan, Results, Sample, Side, arguments, compare, plan_of, show, timed
from bench.processes import COMMAND, ask, cube_server
from bench.serving import SLOTS, TOLERANCE, our_serving, publish_version
from bench.serving_rows import VALUES, publish_rows, table_of, text_of
from bench.table import PARTITIONS, VERSION, Made
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.manifest import DictionaryManifest
from elastic_ctr.store.versions.published_files import publish

GOAL = 2.0
ROWS, QUICK_ROWS = 300_000, 30_000
KEYS = 1_000_000
PROCESSES = 2
_BLOCK = 10_000


@dataclass(frozen=True)
class Input:
    """A file of rows, what `data` and `features` say of it, and the options that `predict FILE` needs for it."""

    name: str
    file: Path
    rows: int
    values: dict[str, Any]
    options: tuple[str, ...]


def lines(table: Made, folder: Path, rows: int) -> Input:
    file = folder / "part-0"
    dice = np.random.default_rng(4)
    with file.open("w") as out:
        for asked in tables.asked(table, "zipf", rows // _BLOCK, _BLOCK * len(SLOTS)):
            clicks = dice.integers(0, 2, _BLOCK).tolist()
            for click, row in zip(clicks, asked.reshape(_BLOCK, -1).tolist(), strict=True):
                features_of = " ".join(f"{key}:{slot}" for key, slot in zip(row, SLOTS, strict=True))
                out.write(f"1 {click} {features_of}\n")
    return Input("lines of feasigns", file, rows, {"data": {"slots": list(SLOTS)}}, ())


def rows(folder: Path, count: int) -> Input:
    file = folder / "part-0.tsv"
    dice = np.random.default_rng(5)
    with file.open("w") as out:
        writer = csv.writer(out, delimiter="\t", lineterminator="\n")
        writer.writerow(COLUMNS)
        for _ in range(count // _BLOCK):
            numbers = np.floor(dice.lognormal(3, 2, (_BLOCK, len(NUMBERS)))).astype(np.int64).tolist()
            places = tables.zipf(VALUES, _BLOCK * len(TEXTS), dice).reshape(_BLOCK, -1).tolist()
            clicks = dice.integers(0, 2, _BLOCK).tolist()
            for click, row, own in zip(clicks, numbers, places, strict=True):
                writer.writerow([click, *row, *map(text_of, own)])
    described = features().model_dump(mode="json", by_alias=True, exclude_defaults=True)
    values = {"data": {"format": "tsv", "label": "label"}, "features": described, "statistics": statistics().to_json()}
    return Input("rows of columns", file, count, values, ("--format", "tsv", "--label", "label"))


def put_dictionary(table: Made, store: FileStore) -> None:
    """As cube-transfer has it built: the parts that cube-server holds."""
    parts = tables.paths(table.folder, VERSION)
    entries = [
        publish(store, parts[number].full, layout.dictionary_part(VERSION, number)) for number in range(PARTITIONS)
    ]
    manifest = DictionaryManifest(
        version=VERSION, kind="full", full_version=VERSION, base=VERSION, parent=None, partitions=PARTITIONS,
        dim=table.dim, keys=len(table.keys), files=tuple(entries),
    )  # fmt: skip
    store.put_bytes(manifest.to_json(), layout.dictionary_manifest(VERSION))


def command_of_ours(given: Input, folder: Path, store: FileStore, out: Path) -> list[str]:
    # The hours are not read, and the output may not lie among them.
    data = {
        **given.values["data"],
        "source": {"url": f"{folder.as_uri()}/hours"},
        "start": "20200401/00",
        "taskBytes": 8 << 20,
    }
    values = folder / "values.yaml"
    values.write_text(yaml.safe_dump({**given.values, "data": data}))
    return [
        str(COMMAND), "predict", str(given.file), "-f", str(values), "--store", store.url, "--output", str(out),
        "--processes", str(PROCESSES),
    ]  # fmt: skip


def timed_run(command: list[str], rows: int, before: Callable[[], object] = lambda: None) -> Sample:
    before()
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-1000:]}")
    return Sample(rows, seconds)


def scored(out: Path) -> Iterator[float]:
    for file in sorted(out.rglob("*.csv")):
        with file.open(newline="") as text:
            yield from (float(row["probability"]) for row in csv.DictReader(text))


def measure(given: Input, table: Made, publishing: Callable[[Made, Path], object], folder: Path, plan: Plan) -> Any:
    out, asked = folder / "out", folder / "asked"
    with ExitStack() as stack:
        cube = stack.enter_context(cube_server(FOLDER / "logs" / "scoring-cube.log"))
        ask(cube.admin, "/load", table.load_order())
        serving = stack.enter_context(our_serving(table, folder, cube, publishing))
        store = FileStore(folder / "store")
        put_dictionary(table, store)
        ours = command_of_ours(given, folder, store, out)
        address = f"127.0.0.1:{serving.serving.port}"
        theirs = [str(COMMAND), "predict", str(given.file), "--address", address, "-o", str(asked), *given.options]
        fresh = partial(shutil.rmtree, out, ignore_errors=True)
        sides = (
            Side("ours", lambda _: timed_run(ours, given.rows, fresh)),
            Side("theirs", lambda _: timed_run(theirs, given.rows)),
        )
        compared = compare(f"scored with a version in the store ÷ asked of serving, {given.name}", *sides, plan)
        answers = np.array([float(line) for line in asked.read_text().splitlines()])
        worst = float(np.abs(answers - np.fromiter(scored(out), np.float64)).max())
        assert worst < TOLERANCE, f"the two differ by {worst:.2g}"
        assert answers.std() > 0.1, "the probabilities hardly differ: equality would prove nothing"
    return compared


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    given = parser.parse_args()
    plan, results = plan_of(given), Results(given.results, quick=given.quick)
    count = QUICK_ROWS if given.quick else ROWS
    with timed("bench.scoring"), tempfile.TemporaryDirectory(prefix="bench-scoring-") as name:
        for kind in ("lines", "rows"):
            if not plan.wants(kind):
                continue
            folder = Path(name) / kind
            folder.mkdir()
            if kind == "lines":
                table = tables.made(KEYS)
                made = lines(table, folder, count)
                compared = measure(made, table, publish_version, folder, plan)
            else:
                made = rows(folder, count)
                compared = measure(made, table_of(VALUES), partial(publish_rows, values=VALUES), folder, plan)
            note = f"{count:,} {kind}, {PROCESSES} processes, whole commands"
            results.put(compared.row(GOAL, note=note), compared.details())
    show(results.read())


if __name__ == "__main__":
    main()
