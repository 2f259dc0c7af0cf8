"""Raw rows of Criteo's shape to the engine's text on one core: 13 numbers (`log1p`, `standardize`) and 26 texts of 8 digits, as TSV.

    python -m bench.features [--quick] [--rows 60000]

Ours reads bytes, transforms cells and writes records, as a trainer does. Beside it are pandas with numpy, which read the same bytes,
compute the same numbers and a hash of each text, and write as many fields as text; Keras' preprocessing layers in tf.data, which
do so with TensorFlow's operators; and our own converter of click logs, on lines of 39 features. Times are CPU seconds of one thread,
so that neighbours on the machine count less.
"""

import argparse
import io
import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bench.method import Results, Row, arguments, plan_of, show, summary
from elastic_ctr.config.feature_program import transformer_of
from elastic_ctr.config.features import Features
from elastic_ctr.features.record_text import record_text
from elastic_ctr.features.statistics.document import BUCKETS, NumberStatistics, Statistics
from elastic_ctr.features.transforms.transformer import Transformer
from elastic_ctr.formats.convert import Converter
from elastic_ctr.formats.readers.batches import Format, Wanted
from elastic_ctr.formats.readers.files import rows_in_range
from elastic_ctr.formats.slots import SlotList

NUMBERS = tuple(f"I{place}" for place in range(1, 14))
TEXTS = tuple(f"C{place}" for place in range(1, 27))
COLUMNS = ("label", *NUMBERS, *TEXTS)
MEAN, DEVIATION = 2.5, 1.5
KERAS = str(Path(__file__).parents[1] / ".venv-keras" / "bin" / "python")
ROWS, QUICK_ROWS = 60_000, 10_000


def features() -> Features:
    numbers: dict[str, Any] = {name: {"type": "numeric", "transform": ["log1p", "standardize"]} for name in NUMBERS}
    return Features.model_validate({**numbers, **{name: {"type": "categorical"} for name in TEXTS}})


def statistics() -> Statistics:
    """The constants that both sides standardize by."""
    quantiles = tuple(np.linspace(0, 10, BUCKETS + 1).tolist())
    number = NumberStatistics(
        rows=1, missing=0, distinct=1, min=0.0, max=10.0, mean=MEAN, deviation=DEVIATION, quantiles=quantiles
    )
    return Statistics(texts={}, numbers={f"{name}:log1p": number for name in NUMBERS})


def transformer() -> Transformer:
    return transformer_of(features(), statistics())


def rows_of(count: int, seed: int = 3) -> list[dict[str, Any]]:
    dice = np.random.default_rng(seed)
    numbers = np.floor(dice.lognormal(3, 2, (count, len(NUMBERS)))).astype(np.int64).tolist()
    texts = dice.integers(0, 1 << 32, (count, len(TEXTS))).tolist()
    return [
        {
            **dict(zip(NUMBERS, row, strict=True)),
            **{name: f"{code:08x}" for name, code in zip(TEXTS, codes, strict=True)},
        }
        for row, codes in zip(numbers, texts, strict=True)
    ]


def lines_of(rows: list[dict[str, Any]]) -> bytes:
    """Every third one is a click."""
    lines = (
        "\t".join([str(int(place % 3 == 0)), *(str(row[name]) for name in COLUMNS[1:])])
        for place, row in enumerate(rows)
    )
    return "".join(f"{line}\n" for line in lines).encode()


def texts(data: bytes, made: Transformer) -> Iterator[bytes]:
    """The engine's text, in pieces."""
    for batch in rows_in_range(io.BytesIO(data), "part-0", Format("tsv", COLUMNS), Wanted(made.inputs, "label")):
        yield record_text(made.transform(batch.cells), batch.shows, batch.clicks)[0]


def ours(data: bytes, made: Transformer) -> int:
    """Bytes of text."""
    return sum(map(len, texts(data, made)))


def in_pandas(data: bytes) -> int:
    pandas = import_module("pandas")
    frame = pandas.read_csv(
        io.BytesIO(data), sep="\t", names=list(COLUMNS), dtype=dict.fromkeys(TEXTS, str), na_filter=False, quoting=3
    )
    numbers = ((np.log1p(frame[list(NUMBERS)].to_numpy(np.float64)) - MEAN) / DEVIATION).astype(np.float32)
    columns = [[f"1 1 1 {label} {len(NUMBERS)}" for label in frame["label"].tolist()]]
    columns += [list(map(repr, numbers[:, place].tolist())) for place in range(len(NUMBERS))]
    for name in TEXTS:
        keys = pandas.util.hash_array(frame[name].to_numpy(), categorize=False)
        columns.append([f"1 {key}" for key in keys.tolist()])
    return len("".join([" ".join(row) + "\n" for row in zip(*columns, strict=True)]).encode())


def in_keras(file: Path, wanted: str) -> float:
    """CPU seconds a row."""
    rival = Path(__file__).parent / "rivals" / "keras_layers.py"
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [KERAS, str(rival), str(file), "4096", wanted], env=environment, capture_output=True, text=True, check=True
    )
    seconds, rows = done.stdout.split()
    return float(seconds) / int(rows)


def clicks(rows: int) -> bytes:
    keys = np.random.default_rng(4).integers(1, 1 << 63, (rows, 39), dtype=np.uint64).tolist()
    return "".join("1 1 " + " ".join(f"{key}:{slot}" for slot, key in enumerate(row)) + "\n" for row in keys).encode()


def _seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def compared(name: str, pairs: list[tuple[float, float]], goal: float | None, count: int, data: bytes) -> Row:
    """Of seconds of ours and theirs, measured in turn."""
    best = min(own for own, _ in pairs)
    note = f"{count / best:,.0f} rows/s on one core, {len(data) / best / 1e6:,.0f} MB/s"
    return summary(name, [other / own for own, other in pairs], goal, note=note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    parser.add_argument("--rows", type=int)
    given = parser.parse_args()
    plan, results = plan_of(given), Results(given.results, quick=given.quick)
    count = given.rows or (QUICK_ROWS if given.quick else ROWS)
    data, made = lines_of(rows_of(count)), transformer()
    lines, converter = clicks(count), Converter(SlotList(tuple(map(str, range(39)))), None)
    rivals: dict[str, tuple[float | None, Callable[[], object]]] = {
        "pandas + numpy": (8, lambda: in_pandas(data)),
        "our converter of clicks, 39 features a line": (0.5, lambda: converter.convert(lines)),
    }
    for rival, (goal, theirs) in rivals.items():
        name = f"rows of Criteo's shape to the engine's text ÷ {rival}"
        if not plan.wants(name):
            continue
        ours(data, made)
        theirs()
        pairs = [(_seconds(lambda: ours(data, made)), _seconds(theirs)) for _ in range(plan.repetitions)]
        results.put(compared(name, pairs, goal, count, data))
    for wanted, text, goal in (("text", "", 5), ("tensors", ", which make no text", None)):
        name = f"rows of Criteo's shape to the engine's text ÷ Keras' layers in tf.data{text}"
        if not plan.wants(name):
            continue
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "rows.tsv"
            file.write_bytes(data)
            ours(data, made)
            pairs = [
                (_seconds(lambda: ours(data, made)), count * in_keras(file, wanted)) for _ in range(plan.repetitions)
            ]
        results.put(compared(name, pairs, goal, count, data))
    show(results.read())


if __name__ == "__main__":
    main()
