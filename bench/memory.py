"""Peak memory of a trainer's conversion while it reads a large file of rows, beside the same bytes of click lines.

    python -m bench.memory [--quick]

Each file is converted task by task, 32 MB each, in a process of its own; its peak above that of a process that converts the
file's first task says whether memory grows with the file.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from bench.method import Results, Row, arguments
from elastic_ctr.config.data import Data, DataSource
from elastic_ctr.config.features import Features
from elastic_ctr.config.model import Model
from elastic_ctr.config.role_files import TrainerFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.config.training_settings import TrainerConfig
from elastic_ctr.store.backends.source import FileSource
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.calendar.schedule import cut
from elastic_ctr.training.trainer.conversions import conversion_of, feature_document
from elastic_ctr.training.trainer.converter import convert_task

BYTES, QUICK_BYTES = 2 << 30, 100 << 20
TASK_BYTES = 32 << 20
GOAL = 1.5
NUMBERS, TEXTS = [f"I{n}" for n in range(1, 14)], [f"C{n}" for n in range(1, 27)]
COLUMNS = ("label", *NUMBERS, *TEXTS)
FORMATS = ("clicks", "csv", "parquet")


def settings(kind: str, folder: Path) -> TrainerFile:
    source = DataSource(url=f"file://{folder}")
    of_rows = {"label": "label", "columns": COLUMNS if kind == "csv" else None}
    of_kind: dict[str, Any] = {"slots": tuple(COLUMNS[1:])} if kind == "clicks" else of_rows
    numbers = {name: {"type": "numeric", "transform": ["log1p"], "missing": 0} for name in NUMBERS}
    features = Features.model_validate({**numbers, **{name: {"type": "categorical"} for name in TEXTS}})
    return TrainerFile(
        data=Data(source=source, start="20200401/00", format=kind, **of_kind),
        features=None if kind == "clicks" else features,
        model=Model(),
        store=StoreConfig(url=f"file://{folder}/store"),
        trainer=TrainerConfig(scratch_dir=str(folder)),
        master_address="none:1",
    )


def write(kind: str, file: Path, size: int) -> None:
    """At least so many bytes of rows of Criteo's shape."""
    dice = np.random.default_rng(7)
    rows = 50_000
    numbers = np.floor(dice.lognormal(2, 2, (rows, len(NUMBERS)))).astype(np.int64)
    texts = dice.integers(0, 2**32, (rows, len(TEXTS)), np.uint32)
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        columns: dict[str, Any] = {"label": pa.array((numbers[:, 0] % 2).astype(np.int8))}
        columns |= {name: pa.array(numbers[:, at]) for at, name in enumerate(NUMBERS)}
        columns |= {name: pa.array([f"{each:08x}" for each in texts[:, at].tolist()]) for at, name in enumerate(TEXTS)}
        table = pa.table(columns)
        with pq.ParquetWriter(file, table.schema) as writer:
            while file.stat().st_size < size:
                writer.write_table(table)
        return
    if kind == "csv":
        pairs = zip(numbers.tolist(), texts.tolist(), strict=True)
        lines = [",".join(["0", *map(str, n), *(f"{each:08x}" for each in t)]) for n, t in pairs]
    else:
        keys = dice.integers(1, 2**63, (rows, len(COLUMNS) - 1)).tolist()
        lines = ["1 0 " + " ".join(f"{key}:{slot}" for key, slot in zip(row, COLUMNS[1:], strict=True)) for row in keys]
    block = "".join(f"{line}\n" for line in lines).encode()
    with file.open("wb") as out:
        for _ in range(-(-size // len(block))):
            out.write(block)


def convert(kind: str, folder: Path, most: int) -> dict[str, int]:
    """Convert so many tasks of the file, and say the peak memory of this process and the rows."""
    given = settings(kind, folder)
    conversion = conversion_of(given, feature_document(given, None))
    file = folder / "rows"
    records = 0
    for number, (start, end) in enumerate(cut(file.stat().st_size, TASK_BYTES, whole=False)[:most]):
        task = control.Task(id=f"t-{number}", path=file.name, start=start, end=end, samples=8)
        records += convert_task(FileSource(folder), task, conversion, folder / "task.txt")[0].records
        (folder / "task.txt").unlink()
    return {"records": records, "megabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}


def measured(kind: str, folder: Path, most: int) -> dict[str, int]:
    command = [sys.executable, "-m", "bench.memory", "--convert", kind, str(folder), str(most)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def main() -> None:
    if sys.argv[1:2] == ["--convert"]:
        print(json.dumps(convert(sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments(parser)
    given = parser.parse_args()
    size = QUICK_BYTES if given.quick else BYTES
    peaks: dict[str, tuple[int, int]] = {}
    for kind in FORMATS:
        folder = Path(tempfile.mkdtemp(prefix="elastic-ctr-memory-"))
        try:
            write(kind, folder / "rows", size)
            first, whole = measured(kind, folder, 1), measured(kind, folder, 1 << 30)
        finally:
            shutil.rmtree(folder)
        peaks[kind] = first["megabytes"], whole["megabytes"]
        print(
            f"{kind}: {whole['records']:,} rows of {size >> 20} MB: {first['megabytes']} MB after one task, {whole['megabytes']} in all"
        )
    results = Results(given.results, quick=given.quick)
    for kind in FORMATS[1:]:
        ratio = peaks[kind][1] / peaks["clicks"][1]
        note = f"{peaks[kind][1]} MB at its peak, {peaks[kind][0]} after the first task of {size >> 20} MB; clicks {peaks['clicks'][1]} MB"
        results.put(
            Row(f"a trainer's memory while it reads {kind} ÷ clicks", ratio, ratio, ratio, GOAL, note, "at most")
        )


if __name__ == "__main__":
    main()
