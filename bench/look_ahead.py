"""Seconds from the end of a pass's save to tasks of the next pass, with and without a look ahead.

    python -m bench.look_ahead [--url webhdfs://127.0.0.1:9870/bench] [--partitions 1 100 1000] [--repeats 5] [--write]

Every pass is one hour in `dt=/hr=` folders with a file in each of `country=` partitions, in a folder of this machine or at --url. The
master's own finder, coordinator and ledger are used. `without` looks once the pass is wanted, as after a restart of the master; `ahead`
has looked while the pass before it was saved. --write puts the table into docs/performance.md.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from bench.page import with_table
from elastic_ctr.config.data import Data
from elastic_ctr.config.model import Model
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.config.training_settings import MasterConfig, TrainerConfig
from elastic_ctr.store.backends import FileStore, open_source, open_store
from elastic_ctr.training.master.coordinator import Coordinator
from elastic_ctr.training.master.generations.store_queries import StoreQueries
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.work.finder import HourFinder

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def written(url: str, partitions: int) -> Data:
    """Two hours of so many partitions."""
    path = f"/{partitions}/dt={{time:%Y-%m-%d}}/hr={{time:%H}}"
    data = Data.model_validate(
        {"source": {"url": url}, "path": path, "start": "20261129/00", "end": "20261129/01", "slots": ["a"]}
    )
    store = open_store(StoreConfig(url=url, user=data.source.user))
    for split in ("20261129/00", "20261129/01"):
        folder = data.folder_of(split)
        if not store.exists(f"{folder}/donefile"):
            for number in range(partitions):
                store.put_bytes(b"1 0 1:a\n", f"{folder}/country={number:04}/part-0", overwrite=True)
            store.put_bytes(b"", f"{folder}/donefile")
    return data


def seconds(data: Data, folder: Path, *, ahead: bool) -> float:
    """From the end of the first pass to tasks of the second one."""
    settings = MasterFile(
        data=data,
        model=Model(partitions=4, embedding_dim=9),
        store=StoreConfig(url=folder.as_uri()),
        master=MasterConfig(),
        trainer=TrainerConfig(epochs=1),
        pservers=1,
    )
    ledger = Ledger(folder / "ledger.db")
    coordinator = Coordinator(ledger, settings, StoreQueries(FileStore(folder / "store")))
    finder = HourFinder(open_source(data.source), settings)
    first = coordinator.found.wants_hours()
    assert first is not None
    finder.find(coordinator, first)
    ledger.passes.update(1, state="saving")
    if ahead:
        finder.look_on(coordinator)
        while finder.looks_ahead:
            time.sleep(0.001)
    ledger.passes.update(1, state="done")
    began = time.monotonic()
    second = coordinator.found.wants_hours()
    assert second is not None
    finder.find(coordinator, second)
    took = time.monotonic() - began
    assert ledger.tasks.of(2)
    ledger.close()
    return took


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="a folder of HDFS; one of this machine unless given")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 100, 1000])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="put the table into docs/performance.md")
    given = parser.parse_args()
    where = "a local disk" if given.url is None else given.url.partition(":")[0]
    table = [f"| partitions of an hour on {where} | without, s | ahead, s |", "|---:|---:|---:|"]
    print("\n".join(table), flush=True)
    with tempfile.TemporaryDirectory() as place:
        for partitions in given.partitions:
            data = written(given.url or f"file://{place}/data", partitions)
            found = []
            for ahead in (False, True):
                runs = []
                for _ in range(given.repeats):
                    with tempfile.TemporaryDirectory() as folder:
                        runs.append(seconds(data, Path(folder), ahead=ahead))
                found.append(median(runs))
            table.append(f"| {partitions:,} | {found[0]:.3f} | {found[1]:.3f} |")
            print(table[-1], flush=True)
    if given.write:
        PAGE.write_text(with_table(PAGE.read_text(), "docs/performance.md", "look-ahead", table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
