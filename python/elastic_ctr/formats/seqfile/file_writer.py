"""Writes uncompressed SequenceFiles of (u64, dim float32) that Hadoop reads, many records at a time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.seqfile.file_format import ESCAPE, SYNC_INTERVAL, header_bytes, record_dtype, sync_marker

if TYPE_CHECKING:
    from typing_extensions import Self

_SLICE_BYTES = 8 << 20


class SequenceFileWriter:
    """Writes records in the given order; the same records and seed give the same bytes.

    A path is created or replaced; a stream is left open. The sync marker is made from `seed`, such as the file's name, or
    is `sync` itself; it is written every `sync_interval` bytes, by default as often as by Hadoop.
    """

    def __init__(
        self,
        target: str | Path | BinaryIO,
        *,
        seed: bytes | str = b"",
        sync: bytes | None = None,
        sync_interval: int = SYNC_INTERVAL,
    ) -> None:
        marker = sync if sync is not None else sync_marker(seed.encode() if isinstance(seed, str) else seed)
        header = header_bytes(marker)
        if sync_interval <= 0:
            raise ValueError(f"sync_interval is {sync_interval}; it is a number of bytes above 0.")
        self._owned = Path(target).open("wb") if isinstance(target, (str, Path)) else None  # noqa: SIM115 - see close
        self._stream: BinaryIO = self._owned if self._owned is not None else target  # type: ignore[assignment]
        self._escape = ESCAPE + marker
        self._interval = sync_interval
        self._last_sync = 0
        self._dim: int | None = None
        self.records = 0
        self.bytes = 0
        self._put(header)

    def write(self, keys: npt.NDArray[np.uint64], values: npt.NDArray[np.float32]) -> None:
        """Append n records: keys u64[n], values f32[n, dim], with one dim in all calls. Raises ValueError for others."""
        if keys.dtype != np.uint64 or values.dtype != np.float32:
            raise ValueError(f"records are u64 and float32, not {keys.dtype} and {values.dtype}.")
        if keys.ndim != 1 or values.ndim != 2 or len(keys) != len(values):
            raise ValueError(f"keys of shape {keys.shape} do not fit values of shape {values.shape}.")
        dim = values.shape[1]
        if self._dim not in {None, dim}:
            raise ValueError(f"the file holds vectors of {self._dim} floats, these have {dim}.")
        dtype = record_dtype(dim)
        self._dim = dim
        step = max(_SLICE_BYTES // dtype.itemsize, 1)
        for start in range(0, len(keys), step):
            self._append(keys[start : start + step], values[start : start + step], dtype)

    def close(self) -> None:
        """Close the file, if it was opened here."""
        if self._owned is not None:
            self._owned.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _append(self, keys: npt.NDArray[np.uint64], values: npt.NDArray[np.float32], dtype: np.dtype[np.void]) -> None:
        size = dtype.itemsize
        records = np.empty(len(keys), dtype=dtype)
        records["record_bytes"] = size - 8
        records["key_bytes"] = 12
        records["key_length"] = 8
        records["key"] = keys
        records["value_length"] = 4 * values.shape[1]
        records["value"] = values
        view = records.view(np.uint8).data
        done = 0
        while done < len(keys):
            # As in Hadoop, an escape precedes the first record that begins an interval or more after the last escape.
            if self.bytes >= self._last_sync + self._interval:
                self._put(self._escape)
                self._last_sync = self.bytes
            until_sync = -(-(self._last_sync + self._interval - self.bytes) // size)
            now = min(until_sync, len(keys) - done)
            self._put(view[done * size : (done + now) * size])
            done += now
        self.records += len(keys)

    def _put(self, data: bytes | memoryview) -> None:
        self._stream.write(data)
        self.bytes += len(data)
