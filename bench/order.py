"""What the order of a file's lines costs: sorted by time, by user and by label, beside the same lines shuffled beforehand.

    python -m bench.order [--rows 30000] [--repeats 3] [--write]

Lines of a known truth (`elastic-ctr synth --preset easy`), whose first slot is the user, are one file of a pass, which is converted as a trainer does it by the
defaults and with `data.shuffle: false`, and learned by the trainer's own engine beside one pserver as the master would choose. `by time`: the items
of the second slot come and go. AUC and logloss are the means of 50,000 lines that were not trained; the last column is the difference
to the lines that were shuffled beforehand. --write puts the table into docs/learning.md. Exit code 1 where the defaults differ by more than 0.005.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from bench.learning import PAGE, SEED, measured, written
from bench.page import with_table
from elastic_ctr.config.data import Data, DataSource
from elastic_ctr.features.synthetic import PRESETS, DrawnLines, Truth
from elastic_ctr.formats.line import MAX_LINE_BYTES
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.store.backends.source import FileSource
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.calendar.schedule import order_of_records
from elastic_ctr.training.trainer.converter import ClickConversion, convert_task

DATA, MOST = "easy", 0.005
_USER, _ITEM = 0, 1
_LINGER = 0.1


def orders(lines: DrawnLines) -> dict[str, npt.NDArray[np.int64]]:
    dice = np.random.default_rng([SEED, 9])
    rows = len(lines.clicks)
    items = lines.indices[:, _ITEM]
    came = dice.permutation(items.max() + 1)[items] / items.max()
    return {
        "by time": np.argsort(came + _LINGER * dice.random(rows), kind="stable"),
        "by user": np.argsort(lines.indices[:, _USER], kind="stable"),
        "by label": np.argsort(lines.clicks, kind="stable"),
    }


def converted(folder: Path, lines: list[bytes], *, shuffle: bool) -> None:
    """train.txt of these lines, by a trainer's conversion of a pass's only file."""
    (folder / "part-0").write_bytes(b"".join(lines))
    data = Data(source=DataSource(url=f"file://{folder}"), start="20200401/00", slots=("0",), shuffle=shuffle)
    conversion = ClickConversion(SlotList.parse((folder / "slot.conf").read_text()), None, MAX_LINE_BYTES)
    task = control.Task(path="part-0", shuffle_seed=order_of_records(data, 1, "part-0", 0))
    convert_task(FileSource(folder), task, conversion, folder / "train.txt")


def cases(rows: int) -> Iterator[tuple[str, str, list[bytes], bool]]:
    """Order, what is done about it, lines, whether they are shuffled."""
    truth = Truth(PRESETS[DATA], SEED)
    drawn = truth.draw(rows, np.random.default_rng([SEED, 1, 0]))
    lines = truth.text(drawn).splitlines(keepends=True)
    yield "shuffled beforehand", "`data.shuffle: false`", lines, False
    for name, order in orders(drawn).items():
        ordered = [lines[place] for place in order.tolist()]
        yield name, "`data.shuffle: false`", ordered, False
        yield name, "the default", ordered, True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="put the table into docs/learning.md")
    given = parser.parse_args()
    table = ["| lines | trained with | AUC | logloss | AUC, to shuffled beforehand |", "|---|---|---|---|---|"]
    print("\n".join(table), flush=True)
    best, worst = None, 0.0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        truth = written(DATA, given.rows, folder)
        for name, how, lines, shuffle in cases(given.rows):
            converted(folder, lines, shuffle=shuffle)
            runs = [measured("auto", folder, given.rows, truth["offset"]) for _ in range(given.repeats)]
            auc, logloss = (float(np.mean([run[of] for run in runs])) for of in ("auc", "logloss"))
            best = auc if best is None else best
            worst = max(worst, abs(auc - best)) if shuffle else worst
            table.append(f"| {name} | {how} | {auc:.4f} | {logloss:.4f} | {auc - best:+.4f} |")
            print(table[-1], flush=True)
            shutil.rmtree(folder / "auto")
    table += ["", f"{given.rows:,} lines of one file, means of {given.repeats} runs (`python -m bench.order --write`)."]
    if given.write:
        PAGE.write_text(with_table(PAGE.read_text(), "docs/learning.md", "order", table))
    return int(worst > MOST)


if __name__ == "__main__":
    sys.exit(main())
