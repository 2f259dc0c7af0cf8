"""The table that is asked: keys and values drawn once, parts made by the product's own builder, kept in build/bench."""

import json
import os
import shutil
import socket
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import track

from bench.method import FOLDER
from elastic_ctr.cube.builder.part import PartIdentity, build_full, build_overlay
from elastic_ctr.cube.dictionary.format import Keys
from elastic_ctr.cube.dictionary.table import Paths, VersionTable

Floats = NDArray[np.float32]
KEYS = 10_000_000  # of the table that the goals are of
PARTITIONS = 60
VERSION = 1_700_000_000
LATER = VERSION + 1  # the same full parts under an overlay of a thousandth of the keys
DIM = 9


@dataclass(frozen=True)
class Made:
    """A table on disk: keys u64[n] in random order, values f32[n, dim], and its parts by partition."""

    folder: Path
    keys: Keys
    values: Floats

    @cached_property
    def _order(self) -> tuple[NDArray[np.int64], Keys]:
        order = np.argsort(self.keys)
        return order, np.asarray(self.keys)[order]

    def truth(self, keys: Keys) -> Floats:
        """Values f32[n, dim] of keys that are there, from what was drawn."""
        order, ordered = self._order
        values: Floats = self.values[order[np.searchsorted(ordered, keys)]]
        return values

    @property
    def dim(self) -> int:
        return int(self.values.shape[1])

    def parts(self, version: int = VERSION) -> dict[int, list[str | None]]:
        """As tests/lookup_process.py takes them."""
        return {
            number: [None if path is None else str(path) for path in own]
            for number, own in paths(self.folder, version).items()
        }

    def load_order(self, version: int = VERSION) -> dict[str, Any]:
        return {"version": version, "dim": self.dim, "partitions": PARTITIONS, "parts": self.parts(version)}


def paths(folder: Path, version: int) -> dict[int, Paths]:
    """The parts of a version by partition."""
    return {
        number: Paths(folder / f"{number}.dict", folder / f"{number}.over" if version == LATER else None)
        for number in range(PARTITIONS)
    }


def opened(folder: Path, dim: int, version: int) -> VersionTable:
    """Its parts mapped into this process."""
    return VersionTable.open(version, dim, PARTITIONS, paths(folder, version), verify=True)


def made(count: int, dim: int = DIM, parent: Path = FOLDER, keys: Keys | None = None) -> Made:
    """The table of that size; built at the first call. Its parts are read from the disk again by whoever maps them first.

    `keys`: those that it has, drawn unless given.
    """
    folder = (parent / f"table-{'' if keys is None else 'of-'}{count}x{dim}").resolve()
    if not (folder / "ready.json").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _build(folder, count, dim, keys)
    _forget(folder)
    return Made(folder, np.load(folder / "keys.npy", mmap_mode="r"), np.load(folder / "values.npy", mmap_mode="r"))


def _forget(folder: Path) -> None:
    """Have the kernel drop the parts: a page cache that reclaim has cut up makes lookups a third slower, and a part that
    was just fetched, which is the everyday case, is not so.
    """
    for file in folder.glob("*.dict"):
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _build(folder: Path, count: int, dim: int, given: Keys | None) -> None:
    random = np.random.default_rng(1)
    keys = np.unique(random.integers(1, 2**64 - 1, count, dtype=np.uint64) if given is None else given)
    random.shuffle(keys)
    values = random.standard_normal((keys.size, dim), dtype=np.float32)
    np.save(folder / "keys.npy", keys)
    np.save(folder / "values.npy", values)
    numbers = keys % np.uint64(PARTITIONS)
    changed = np.arange(keys.size) < keys.size // 1000
    for number in track(range(PARTITIONS), f"building {keys.size:,} keys x {dim}"):
        own = np.flatnonzero(numbers == number)
        build_full(
            [(keys[own], values[own])],
            folder / f"{number}.dict",
            PartIdentity(VERSION, number, PARTITIONS, dim),
        )
        over = own[changed[own]]
        build_overlay(
            [],
            [(keys[over], -values[over])],
            folder / f"{number}.over",
            PartIdentity(LATER, number, PARTITIONS, dim, VERSION),
        )
    (folder / "ready.json").write_text(json.dumps({"keys": int(keys.size), "dim": dim}))


def zipf(count: int, size: int, random: np.random.Generator, a: float = 1.05) -> NDArray[np.int64]:
    """Ranks below count; the lower the likelier. Keys are in random order, so a rank may be taken as a place."""
    ranks = (1 + random.random(size) * (count ** (1 - a) - 1)) ** (1 / (1 - a))
    places: NDArray[np.int64] = np.minimum(ranks.astype(np.int64), count) - 1
    return places


def asked(table: Made, distribution: str, requests: int, n: int) -> Keys:
    """Keys u64[requests, n] as readers would ask them: uniform, or zipf 1.05."""
    random = np.random.default_rng(n)
    places = (
        random.integers(0, table.keys.size, requests * n)
        if distribution == "uniform"
        else zipf(table.keys.size, requests * n, random)
    )
    keys: Keys = np.asarray(table.keys)[places].reshape(requests, n)
    return keys


def resp_mget(keys: Keys) -> bytes:
    """MGET of raw 8-byte keys."""
    items = np.empty((keys.size, 14), np.uint8)
    items[:, :4] = np.frombuffer(b"$8\r\n", np.uint8)
    items[:, 4:12] = np.ascontiguousarray(keys).view(np.uint8).reshape(-1, 8)
    items[:, 12:] = np.frombuffer(b"\r\n", np.uint8)
    return b"*%d\r\n$4\r\nMGET\r\n" % (keys.size + 1) + items.tobytes()


def resp_reply(n: int, dim: int) -> tuple[bytes, int]:
    """How the answer to that begins, and how many bytes follow."""
    begins = b"*%d\r\n$%d\r\n" % (n, 4 * dim)
    item = len(b"$%d\r\n" % (4 * dim)) + 4 * dim + 2
    return begins, len(b"*%d\r\n" % n) + n * item - len(begins)


def fill_redis(table: Made, port: int) -> None:
    """SET every key, pipelined."""
    size = 4 * table.dim
    head, middle = b"*3\r\n$3\r\nSET\r\n$8\r\n", b"\r\n$%d\r\n" % size
    with socket.create_connection(("127.0.0.1", port)) as sock:
        for start in track(range(0, table.keys.size, 20_000), "filling Redis"):
            keys, values = table.keys[start : start + 20_000], table.values[start : start + 20_000]
            rows = np.empty((keys.size, len(head) + 8 + len(middle) + size + 2), np.uint8)
            at = 0
            for piece in (head, np.ascontiguousarray(keys).view(np.uint8).reshape(-1, 8), middle,
                          np.ascontiguousarray(values).view(np.uint8), b"\r\n"):  # fmt: skip
                block = np.frombuffer(piece, np.uint8) if isinstance(piece, bytes) else piece
                rows[:, at : at + block.shape[-1]] = block
                at += block.shape[-1]
            sock.sendall(rows.tobytes())
            due = 5 * keys.size
            while due:
                got = sock.recv(min(due, 1 << 16))
                if not got or got[:1] == b"-":
                    raise RuntimeError(f"Redis refused: {got[:80]!r}")
                due -= len(got)
