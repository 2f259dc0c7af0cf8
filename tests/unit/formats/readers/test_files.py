"""What holds for files of every kind: compression and memory."""

from __future__ import annotations

import gzip
import io
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from elastic_ctr.formats.blocks import DamagedFile
from elastic_ctr.formats.readers.batches import Format
from elastic_ctr.formats.readers.files import rows_in_range
from formats.readers.oracle import rows_of, wanted_of

CONTENT = b"user,price\n" + b"".join(b"user-%d,%d\n" % (row, row) for row in range(20_000))
WANTED = wanted_of(["user"], ["price"])


def zstd(content: bytes) -> bytes:
    return bytes(pa.compress(content, codec="zstd", asbytes=True))


COMPRESSED = pytest.mark.parametrize(("ending", "compress"), [("gz", gzip.compress), ("zst", zstd)])


@COMPRESSED
def test_a_compressed_file_has_the_rows_and_places_of_its_text(ending: str, compress: Callable[[bytes], bytes]) -> None:
    stream = io.BytesIO(compress(CONTENT))

    found = rows_of(rows_in_range(stream, f"part-0.csv.{ending}", Format("csv"), WANTED))

    assert found == rows_of(rows_in_range(io.BytesIO(CONTENT), "part-0.csv", Format("csv"), WANTED))
    assert len(found) == 20_000


@COMPRESSED
def test_a_compressed_file_that_is_cut_off_is_named(ending: str, compress: Callable[[bytes], bytes]) -> None:
    stream = io.BytesIO(compress(CONTENT)[:-20])

    with pytest.raises(DamagedFile, match=rf"part-0\.csv\.{ending} is damaged or cut off \("):
        list(rows_in_range(stream, f"part-0.csv.{ending}", Format("csv"), WANTED))


@COMPRESSED
@pytest.mark.parametrize("columns", [None, ("user", "price")])
def test_a_compressed_file_can_only_be_read_whole(
    ending: str, compress: Callable[[bytes], bytes], columns: tuple[str, ...] | None
) -> None:
    stream = io.BytesIO(compress(CONTENT))

    with pytest.raises(ValueError, match="cannot seek to byte 100; read it whole"):
        list(rows_in_range(stream, f"part-0.csv.{ending}", Format("csv", columns), WANTED, 100))


WRITE = {
    "csv": """
        with open(path, "wb") as file:
            for _ in range(100):
                file.write(b"".join(b"%s,%d\\n" % (b"abcdefghij" * 19, row) for row in range(10_000)))
    """,
    # One row group, as large as the file.
    "parquet": """
        letters = np.random.default_rng(0).integers(97, 123, 200_000_000, dtype=np.uint8)
        offsets = np.arange(0, 200_000_001, 200, dtype=np.int32)
        text = pa.Array.from_buffers(pa.string(), 1_000_000, [None, pa.py_buffer(offsets), pa.py_buffer(letters)])
        parquet.write_table(pa.table({"text": text, "number": range(1_000_000)}), path, row_group_size=1_000_000)
    """,
}
READ = """
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    read = lambda: sum(len(batch.cells) for batch in rows_in_range(open(path, "rb"), path, form, wanted))
    form = Format(kind, ("text", "number") if kind == "csv" else None)
    wanted = Wanted(InputColumns((TextInput("text", ""),), ("number",)))
    list(rows_in_range(io.BytesIO(small), path, form, wanted))
    before = peak()
    print(read(), peak() - before)
"""
IMPORTS = """
import io, resource, sys
import numpy as np
import pyarrow as pa
from pyarrow import parquet
from elastic_ctr.formats.inputs import InputColumns, TextInput
from elastic_ctr.formats.readers.batches import Format, Wanted
from elastic_ctr.formats.readers.files import rows_in_range
path, kind = sys.argv[1:]
"""
SMALL = {
    "csv": "small = b'a,1\\n'",
    "parquet": "sink = io.BytesIO(); parquet.write_table(pa.table({'text': ['a'], 'number': [1]}), sink); "
    "small = sink.getvalue()",
}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_file_of_200_megabytes_takes_a_few_batches_of_memory(tmp_path: Path, kind: str) -> None:
    path = str(tmp_path / "part-0")
    run = [sys.executable, "-c"]
    subprocess.run([*run, IMPORTS + textwrap.dedent(WRITE[kind]), path, kind], check=True)
    reading = IMPORTS + SMALL[kind] + "\n" + textwrap.dedent(READ)

    found = subprocess.run([*run, reading, path, kind], check=True, capture_output=True, text=True).stdout

    rows, megabytes = map(int, found.split())
    assert Path(path).stat().st_size > 190_000_000
    assert rows == 1_000_000
    assert megabytes < 100
