"""What rows are said to take of the disk, beside the file that SQLite writes."""

import random
from contextlib import closing
from pathlib import Path

import pytest

from elastic_ctr.sources.intake.click_log import ClickLog, Retention
from elastic_ctr.sources.intake.join import LateClicks
from elastic_ctr.sources.intake.request_lines import Clicks

JSONL = LateClicks("jsonl", (), "id", "click", "n", frozenset({"city"}))
FOR_EVER = Retention(1e9, 1 << 40)
# Of a table that is as good as empty.
_SCHEMA_BYTES = 64 << 10
SIZES = (10, 100, 1000, 1300, 2030, 2050, 2500, 3000, 4000, 4040, 4060, 4100, 5000, 6300, 8200, 100_000)


def file_bytes(log: ClickLog, folder: Path) -> int:
    log._file.db.execute("pragma wal_checkpoint(truncate)")
    return (folder / "clicks.sqlite").stat().st_size


@pytest.mark.parametrize("size", SIZES)
def test_the_lines_of_small_and_large_requests_take_no_more_than_is_counted(tmp_path: Path, size: int) -> None:
    with closing(ClickLog(tmp_path, FOR_EVER)) as log:
        for _ in range(min(2000, 2_000_000 // size)):
            log.append([Clicks(b"x" * (size - 1) + b"\n", 1)], 0.0)

        assert 0.65 * log.bytes < file_bytes(log, tmp_path) <= 1.02 * log.bytes + _SCHEMA_BYTES


@pytest.mark.parametrize("size", [80, 150, 1000, 1200, 2000, 2100, 3000, 6300])
def test_impressions_take_no_more_than_is_counted(tmp_path: Path, size: int) -> None:
    dice = random.Random(size)
    with closing(ClickLog(tmp_path, FOR_EVER, join=(JSONL, 1e6))) as log:
        for at in range(min(3000, 2_000_000 // size)):
            shown = b'{"id": "%032x", "city": "%s", "n": 1, "click": 0}\n' % (dice.getrandbits(128), b"x" * (size - 78))
            log.append([Clicks(shown, 1)], float(at))
        log._file.db.execute("delete from batches")
        log._file.db.execute("vacuum")
        assert log._impressions is not None

        assert file_bytes(log, tmp_path) <= 1.02 * log._impressions.bytes + _SCHEMA_BYTES
