"""Records of a SequenceFile for a build: large blocks, each byte read once.

Compiled code reads files of our own kind (uncompressed, records of one size); it recognises only whole records and sync
markers. `SequenceFileReader` takes over at anything else: it reads every kind of file and reports what is wrong with a
damaged one.
"""

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from elastic_ctr.cube.dictionary.format import Keys, Values
from elastic_ctr.formats.seqfile.file_format import ESCAPE, SYNC_BYTES, Compression, SequenceFileHeader, record_dtype
from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.machine_code.compiled import compiled
from elastic_ctr.machine_code.intrinsics import copy_bytes, load_u32, load_u64

BLOCK_KEYS = 1 << 19
_CHUNK = 1 << 20
_SYNC = len(ESCAPE) + SYNC_BYTES
_8, _12, _20, _24 = (np.uint64(number) for number in (8, 12, 20, 24))


def read_blocks(path: Path, *, name: str, records: int, dim: int) -> Iterator[tuple[Keys, Values]]:
    """Yield blocks of keys u64[n] and values f32[n, dim] of a file of that many records; a file of another dim has its own.

    Raises SequenceFileDamaged, which calls the file `name`, and OSError.
    """
    with SequenceFileReader(path, name=name) as reader:
        header = reader.header
    done = 0
    if header.compression is Compression.NONE:
        done, whole = yield from _plain(path, header, min(max(records, 1), BLOCK_KEYS), dim)
        if whole and done == records:
            return
    with SequenceFileReader(path, name=name, expected_records=records) as reader:
        for keys, values in reader:
            known = min(done, keys.size)
            done -= known
            if known < keys.size:
                yield keys[known:], values[known:]


def _plain(
    path: Path, header: SequenceFileHeader, block: int, dim: int
) -> Generator[tuple[Keys, Values], None, tuple[int, bool]]:
    """Yield blocks until the end of the file or the first bytes that are neither record nor sync marker.

    Return the number of records, and True at the end of the file.
    """
    record = np.zeros(1, record_dtype(dim))
    size = record.itemsize
    record["record_bytes"], record["key_bytes"] = size - 8, 12
    record["key_length"], record["value_length"] = 8, 4 * dim
    form = record.view(np.uint8)
    sync = np.frombuffer(ESCAPE + header.sync, np.uint8)
    chunk = np.empty(_CHUNK + size + _SYNC, np.uint8)
    keys, values = np.empty(block, np.uint64), np.empty((block, dim), np.float32)
    held = taken = done = 0
    with path.open("rb", buffering=0) as stream:
        stream.seek(header.body)
        while got := stream.readinto(chunk.data[held:]) or 0:
            held += got
            at = 0
            while True:
                at, taken = _take(chunk, at, held, form, sync, keys, values, taken)
                if taken < block:
                    break
                yield keys, values
                done += block
                keys, values, taken = np.empty(block, np.uint64), np.empty((block, dim), np.float32), 0
            held -= at
            if held >= size + _SYNC:
                break
            chunk[:held] = chunk[at : at + held].copy()
    if taken:
        yield keys[:taken], values[:taken]
    return done + taken, held == 0


@compiled
def _take(data: Any, at: Any, end: Any, form: Any, sync: Any, keys: Any, values: Any, taken: Any) -> Any:
    """Move records out of data[at:end] to keys[taken:] and values[taken:], passing sync markers.

    form is a record of zeros with its four lengths. Stop if neither a whole record nor a sync marker begins at `at`, or if
    keys is full. Return the offset of the stop and the number of records in keys.
    """
    start = np.uint64(data.ctypes.data)
    ours = np.uint64(form.ctypes.data)
    outer, inner, behind = load_u64(ours), load_u32(ours + _8), load_u32(ours + _20)
    target, value_bytes = np.uint64(values.ctypes.data), np.uint64(4 * values.shape[1])
    while taken < keys.size:
        record = start + np.uint64(at)
        if (
            at + form.size <= end
            and load_u64(record) == outer
            and load_u32(record + _8) == inner
            and load_u32(record + _20) == behind
        ):
            keys[taken] = load_u64(record + _12)
            copy_bytes(target + np.uint64(taken) * value_bytes, record + _24, value_bytes)
            taken += 1
            at += form.size
            continue
        if at + sync.size > end:
            break
        for i in range(sync.size):
            if data[at + i] != sync[i]:
                return at, taken
        at += sync.size
    return at, taken
