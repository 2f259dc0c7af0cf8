"""Sorts rows by key. Rows that do not fit into memory go to sorted runs on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.uint64]
Vectors = npt.NDArray[np.float32]

MEMORY_ROWS = 2_000_000
_SAMPLES = 4096


class DuplicateKey(ValueError):
    """A key was added twice."""

    def __init__(self, key: int) -> None:
        super().__init__(f"the key {key} is there twice.")
        self.key = key


class SortedRows:
    """Takes rows in any order and yields them sorted, once.

    Args:
        folder: the folder of runs, used only if there are more than `memory_rows`. It belongs to this object, but the
            caller deletes it.
        memory_rows: about the most rows in memory, twice that during a sort.
    """

    def __init__(self, folder: Path, memory_rows: int = MEMORY_ROWS) -> None:
        self._folder = folder
        self._memory_rows = memory_rows
        self._held: list[tuple[Keys, Vectors]] = []
        self._rows_held = 0
        self._runs: list[tuple[Keys, Vectors]] = []

    def add(self, keys: Keys, values: Vectors) -> None:
        """Add keys uint64 [n] and values float32 [n, m]; m is the same in every call."""
        self._held.append((keys, values))
        self._rows_held += len(keys)
        if self._rows_held >= self._memory_rows:
            self._spill()

    def blocks(self) -> Iterator[tuple[Keys, Vectors]]:
        """Yield blocks of sorted rows.

        Raises:
            DuplicateKey: a key was added twice.
        """
        if not self._runs:
            if self._rows_held:
                yield _unique(*self._sorted())
            return
        if self._rows_held:
            self._spill()
        edges = self._edges()
        for low, high in zip([0, *edges], [*edges, None], strict=True):
            # Equal keys fall into the same piece, so a key in two runs is detected.
            pieces = [(keys[a:b], values[a:b]) for keys, values in self._runs for a, b in [_between(keys, low, high)]]
            if any(len(keys) for keys, _ in pieces):
                yield _unique(*_sorted(pieces))

    def _sorted(self) -> tuple[Keys, Vectors]:
        rows = _sorted(self._held)
        self._held, self._rows_held = [], 0
        return rows

    def _spill(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        keys, values = self._sorted()
        name = f"run-{len(self._runs):05d}"
        self._runs.append((self._kept(f"{name}-keys.npy", keys), self._kept(f"{name}-values.npy", values)))

    def _kept(self, name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        np.save(self._folder / name, array)
        kept: npt.NDArray[Any] = np.load(self._folder / name, mmap_mode="r")
        return kept

    def _edges(self) -> list[int]:
        """Return keys that cut all runs together into pieces that fit into memory."""
        rows = sum(len(keys) for keys, _ in self._runs)
        step = max(1, min(self._memory_rows, rows) * len(self._runs) // _SAMPLES // 4)
        samples = np.sort(np.concatenate([keys[::step] for keys, _ in self._runs]))
        every = max(1, self._memory_rows // step // 2)
        return [int(key) for key in np.unique(samples[every::every])]


def _between(keys: Keys, low: int, high: int | None) -> tuple[int, int]:
    end = len(keys) if high is None else int(np.searchsorted(keys, np.uint64(high)))
    return int(np.searchsorted(keys, np.uint64(low))), end


def _sorted(rows: list[tuple[Keys, Vectors]]) -> tuple[Keys, Vectors]:
    keys = np.concatenate([keys for keys, _ in rows])
    values = np.concatenate([values for _, values in rows])
    order = np.argsort(keys, kind="stable")
    return keys[order], values[order]


def _unique(keys: Keys, values: Vectors) -> tuple[Keys, Vectors]:
    twice = np.flatnonzero(keys[1:] == keys[:-1])
    if len(twice):
        raise DuplicateKey(int(keys[twice[0]]))
    return keys, values
