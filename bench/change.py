"""A model changed by `model.startFrom` beside the model that goes on as it was, and beside one that begins with nothing.

    .venv/bin/python -m bench.change [--rows 20000]

The old model is trained on two hours of rows of a known truth. The changed one begins with its first version, in a store of its own, and
is trained on the second hour: `device` is dropped and ranges of `price` are added; then the same with another network. Printed: the AUC of the second hour's predictions
before and after training it. Exit code 1 if the changed model is more than 0.003 below the old one.
"""

import argparse
import math
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.method import ending
from elastic_ctr.config.load import settings
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.local.plan import RunPlaces
from elastic_ctr.operate.local.processes import Supervisor
from elastic_ctr.operate.local.session import Session

HOURS = ("20200401/00", "20200401/01")
SLOTS = {"user": 400, "item": 150, "place": 30, "device": 5}
LOSS = 0.003
SECONDS = 600.0
ROLES = ("master", "trainer", "pserver")

CATEGORICAL: dict[str, Any] = {name: {"type": "categorical"} for name in ("user", "item", "place")}
PRICE: dict[str, Any] = {"price": {"type": "numeric", "transform": ["log1p", "standardize"]}}
BEFORE = {**CATEGORICAL, **PRICE, "device": {"type": "categorical"}}
RANGES = {"range": {"type": "bucketized", "column": "price", "boundaries": {"quantiles": 8}}}
NOW = {**CATEGORICAL, **PRICE, **RANGES}

Row = dict[str, Any]


def row(dice: random.Random) -> Row:
    values = {name: f"{name[0]}{dice.randrange(count)}" for name, count in SLOTS.items()}
    return {**values, "price": dice.lognormvariate(2, 1)}


def write_hour(folder: Path, rows: Sequence[Row], dice: random.Random) -> None:
    """CSV. Each user, item and place has a taste of its own; device and price do not matter."""
    folder.mkdir(parents=True)
    lines = [",".join([*SLOTS, "price", "clicked"])]
    for each in rows:
        tastes = sum(random.Random(each[name]).gauss(0, 1.2) for name in ("user", "item", "place"))
        clicked = dice.random() < 1 / (1 + math.exp(1 - tastes))
        lines.append(",".join([*map(str, each.values()), str(int(clicked))]))
    (folder / "part-0.csv").write_text("\n".join(lines) + "\n")
    (folder / "donefile").touch()


def trained(folder: Path, data: Path, hours: Sequence[str], features: Row, model: Row) -> dict[str, Any]:
    """The status of the master once all is trained."""
    given = {
        "data": {
            "source": {"url": f"file://{data}"}, "path": "/", "start": hours[0], "end": hours[-1], "format": "csv",
            "label": "clicked", "sleepSeconds": 0.5,
        },
        "features": features,
        "model": {"partitions": 12, "network": {"layers": [64, 32]}, **model},
        "trainer": {"replicas": 1, "config": {"batchSize": 64, "epochs": 3}},
        "pserver": {"replicas": 2},
        "local": {"portBase": 21300},
    }  # fmt: skip
    session = Session(RunPlaces(folder, settings(Values, given, "change")))
    roles = [each for each in session.supervisor.roles if each.command in ROLES]
    session.supervisor = Supervisor(session.places, roles)
    ends = time.monotonic() + SECONDS
    with session.running():
        while session.status is None or not session.status.finished:
            if time.monotonic() > ends:
                raise TimeoutError(f"it is not trained within {SECONDS:g} s; logs in {folder}/logs")
            session.look()
            session.raise_for_problems()
            time.sleep(0.2)
        return session.status.to_dict()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000, help="Rows an hour.")
    rows, dice = parser.parse_args().rows, random.Random(11)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for hour in HOURS:
            write_hour(folder / "data" / hour, [row(dice) for _ in range(rows)], dice)
        old = trained(folder / "old", folder / "data", HOURS, BEFORE, {})
        start = {"startFrom": {"store": f"file://{folder}/old/store", "version": old["passes"][0]["version"]}}
        print(f"{'':24} AUC before   AUC after")
        aucs = {"the old model goes on": _said("the old model goes on", old["passes"][1])}
        for title, model in (
            ("changed features", start),
            ("and dcn-v2", {**start, "network": {"name": "dcn-v2", "layers": [64, 32]}}),
            ("from nothing", {}),
        ):
            status = trained(folder / title.replace(" ", "-"), folder / "data", HOURS[1:], NOW, model)
            aucs[title] = _said(title, status["passes"][0])
            if model:
                print(f"    taken over: {status['startedFrom']['network']}")
    (before, after), changed = aucs["the old model goes on"], aucs["changed features"]
    return int(changed[0] < before - LOSS or changed[1] < after - LOSS)


def _said(title: str, one: dict[str, Any]) -> tuple[float, float]:
    print(f"{title:24} {one['aucBefore']:10.4f} {one['auc']:11.4f}", flush=True)
    return one["aucBefore"], one["auc"]


if __name__ == "__main__":
    sys.exit(ending(main))
