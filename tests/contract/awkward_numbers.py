"""Two hundred floats that are awkward to a model, each in a column of every type among ordinary rows, as files of rows."""

import json
import sys
from pathlib import Path

import numpy as np

FLOATS = list(
    dict.fromkeys(
        float(sign * number)
        for sign in (1, -1)
        for number in (
            *(10.0**exponent for exponent in range(-320, 309, 8)),
            *(np.float64(edge) for edge in np.finfo(np.float32).max * np.array([0.5, 1 - 1e-8, 1, 1 + 1e-7, 2])),
            *(np.sqrt(np.float64(np.finfo(np.float32).max)) * each for each in (0.99, 1, 1.01)),
            *(10.0**exponent for exponent in (5, 6, 7, 9, 12, 15, 18, 19, 20, 30, 38)),
            *(2.0**power + each for power in (24, 31, 32, 53, 63, 64) for each in (-1, 0, 1)),
            *(np.finfo(np.float32).tiny, np.finfo(np.float32).smallest_subnormal, 5e-324, sys.float_info.max),
            *(0.0, 0.1, 0.5, 1 - 2**-53, 1.0, 3.14159),
        )
    )
)
COLUMNS = ("raw", "scaled", "bucket", "rounded")
FEATURES = {
    "user": {"type": "categorical"},
    "raw": {"type": "numeric", "transform": [], "missing": 0},
    "scaled": {"type": "numeric", "transform": [{"clip": [-9, 9]}, "log1p"], "missing": 0},
    "bucket": {"type": "bucketized", "boundaries": [-1e30, -1, 0, 0.5, 1e30]},
    "rounded": {"type": "categorical", "round": 2},
}
ORDINARY = 1000


def rows() -> list[dict[str, object]]:
    """The ordinary ones first; then a row for each float in each column."""
    dice = np.random.default_rng(1)
    found: list[dict[str, object]] = []
    for number in range(ORDINARY + len(FLOATS) * len(COLUMNS)):
        user = int(dice.integers(20))
        row: dict[str, object] = {"label": int(dice.random() < (user + 1) / 25), "user": f"u{user}"}
        row.update({column: round(float(dice.normal()), 3) for column in COLUMNS})
        if number >= ORDINARY:
            which, column = divmod(number - ORDINARY, len(COLUMNS))
            row[COLUMNS[column]] = FLOATS[which]
        found.append(row)
    return found


def write_files(folder: Path) -> dict[str, str]:
    """By format, the name of a file of the rows."""
    import pyarrow as pa
    from pyarrow import parquet

    given = rows()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "log.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in given))
    lines = [",".join(map(str, row.values())) for row in given]
    (folder / "log.csv").write_text("\n".join([",".join(given[0]), *lines]) + "\n")
    parquet.write_table(pa.Table.from_pylist(given), folder / "log.parquet")
    return {"jsonl": "log.jsonl", "csv": "log.csv", "parquet": "log.parquet"}
