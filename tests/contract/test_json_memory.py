"""JSON that is small on the wire or in bytes and large in memory, against a real server process."""

import asyncio
import zlib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from contract import serving_world
from contract.serving_world import FEATURES, FIRST, Cube, Exported, Transfer, lines_of, put_version, serving
from contract.test_grpc_memory import MIB, peak_mib
from elastic_ctr.serving.protocols.json_fields import MOST_VALUES
from elastic_ctr.serving.routes import SOURCE_PATH
from elastic_ctr.store.backends import FileStore

# pytest finds fixtures by the names of a module.
exports, started_cube, cube = serving_world.exports, serving_world.started_cube, serving_world.cube
store, transfer, scratch = serving_world.store, serving_world.transfer, serving_world.scratch

# Limits of numbers and sizes are in tests/unit/serving; what a body may grow to in memory takes a server of its own and bodies of 60 MB.
pytestmark = pytest.mark.nightly
INFER, EXPLAIN = "/v2/models/ctr/infer", "/v1/models/ctr:explain"
MOST_MIB = 50


def packed(data: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return packer.compress(data) + packer.flush()


def of(name: bytes, piece: bytes, size: int = 60_000_000) -> bytes:
    return b'{"%s":[' % name + piece * (size // len(piece)) + b"0]}"


def names(size: int) -> bytes:
    return b'{"instances":[{' + b",".join(b'"%07d":1' % number for number in range(size // 12)) + b"}]}"


# Path, body, whether it is compressed, status.
LARGE: dict[str, tuple[str, Callable[[], bytes], bool, int]] = {
    "objects, compressed": (EXPLAIN, lambda: packed(of(b"instances", b"{},")), True, 413),
    "inputs, compressed": (INFER, lambda: packed(of(b"inputs", b"{},")), True, 413),
    "lists in inputs, compressed": (INFER, lambda: packed(of(b"inputs", b"[[]],")), True, 413),
    "lists, compressed": (SOURCE_PATH, lambda: packed(of(b"instances", b"[[]],")), True, 413),
    "lists, as large as a body may be": (EXPLAIN, lambda: of(b"instances", b"[[]],", 8 * MIB - 99), False, 413),
    "objects, as large as a body may be": (SOURCE_PATH, lambda: of(b"instances", b"{},", 8 * MIB - 99), False, 413),
    "one object of many names": (EXPLAIN, lambda: names(8 * MIB - 99), False, 413),
    "as many lists as a body may have": (INFER, lambda: of(b"inputs", b"[[]],", 5 * (MOST_VALUES // 3 - 9)), False, 400),
}  # fmt: skip


async def test_a_body_takes_little_memory_whatever_it_holds_and_others_are_answered_meanwhile(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    bodies = {name: made() for name, (_, made, _, _) in LARGE.items()}
    everyday = lines_of([FEATURES[0]])
    due = exports[FIRST].probability(FEATURES[0])
    statuses, grown = {}, {}
    async with serving(store, transfer, scratch) as running:
        await running.until_version(FIRST)
        [worker] = running.process.workers.in_order()
        pid = worker.process.pid
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{running.port}", timeout=120) as client:
            # Each way to a refusal once: what is imported and compiled for it takes memory, too.
            for path, _, _, _ in LARGE.values():
                await client.post(path, content=b"{}" + b" " * (200 << 10))
            await client.post(INFER, json=everyday)
            await running.until(lambda: not worker.watchdog.busy)
            for name, (path, _, is_packed, _) in LARGE.items():
                # From here on the peak is that of now.
                Path(f"/proc/{pid}/clear_refs").write_text("5")
                before = peak_mib(pid)
                headers = {"content-encoding": "gzip"} if is_packed else {}
                asked = asyncio.create_task(client.post(path, content=bodies[name], headers=headers))
                while not asked.done():
                    answer = (await client.post(INFER, json=everyday)).json()
                    assert answer["outputs"][0]["data"][0] == pytest.approx(due, abs=1e-5)
                statuses[name] = (await asked).status_code
                grown[name] = peak_mib(pid) - before

    assert statuses == {name: status for name, (_, _, _, status) in LARGE.items()}
    assert {name: size for name, size in grown.items() if size > MOST_MIB} == {}
    print({name: round(size, 1) for name, size in grown.items()})
