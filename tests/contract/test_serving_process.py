"""How the serving role starts and ends, as a process of its own."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from contract import serving_world
from contract.serving_world import FEATURES, FIRST, Cube, Exported, Transfer, config_of, line_of, put_version
from elastic_ctr.store.backends import FileStore
from ports import free_port

# pytest finds fixtures by the names of a module.
exports, started_cube, cube = serving_world.exports, serving_world.started_cube, serving_world.cube
store, transfer, scratch = serving_world.store, serving_world.transfer, serving_world.scratch


def role_file(store: FileStore, transfer: Transfer, scratch: Path, port: int) -> Path:
    config = config_of(store, transfer, scratch, port=port, max_instances=1000, max_body_bytes=1 << 20)
    file = scratch.with_suffix(".yaml")
    file.write_text(config.model_dump_json(by_alias=True))
    return file


COMMAND = [sys.executable, "-m", "elastic_ctr", "serving", "--config"]


def role(store: FileStore, transfer: Transfer, scratch: Path, port: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([*COMMAND, str(role_file(store, transfer, scratch, port))])


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connected(port: int) -> Streams | None:
    try:
        return await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return None


async def until_connected(port: int) -> Streams:
    deadline = time.monotonic() + 120
    while (streams := await connected(port)) is None:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
    return streams


async def until_refused(port: int) -> None:
    deadline = time.monotonic() + 120
    while (streams := await connected(port)) is not None:
        streams[1].close()
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_told_to_end_it_finishes_what_was_asked_and_exits_with_0(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    port = free_port()
    process = role(store, transfer, scratch, port)
    try:
        reader, writer = await until_connected(port)
        tensor = {"name": "line", "shape": [1], "datatype": "BYTES", "data": [line_of(FEATURES[0])]}
        body = json.dumps({"inputs": [tensor]}).encode()
        writer.write(b"POST /v2/models/ctr/infer HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body))
        writer.write(body[:10])
        await writer.drain()
        # A second request has been answered: the half of the first has arrived before it.
        await until_answered(port)
        process.send_signal(signal.SIGTERM)
        await until_refused(port)
        # It still follows who holds the version, and says that it reads it.
        told = await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
        await until_reported(transfer, told.revision)

        writer.write(body[10:])
        answer = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        code = await asyncio.to_thread(process.wait, 60)
    finally:
        process.kill()
        process.wait()

    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert b"connection: close" in answer
    assert code == 0


async def until_reported(transfer: Transfer, revision: int) -> None:
    deadline = time.monotonic() + 15
    while all(each.document is None or each.document.revision != revision for each in transfer.reports):
        assert time.monotonic() < deadline, "no report names the new document"
        await asyncio.sleep(0.02)


async def until_answered(port: int) -> None:
    reader, writer = await until_connected(port)
    writer.write(b"GET /v2 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
    assert (await reader.read()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_workers_die_with_a_parent_that_is_killed(store: FileStore, transfer: Transfer, scratch: Path) -> None:
    await transfer.publish()
    port = free_port()
    process = role(store, transfer, scratch, port)
    try:
        await until_answered(port)
    finally:
        process.kill()
        process.wait()

    await until_refused(port)


async def test_a_taken_port_is_one_sentence_and_exit_code_2(
    store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    taken.listen()
    port = taken.getsockname()[1]

    process = subprocess.run(
        [*COMMAND, str(role_file(store, transfer, scratch, port))],
        capture_output=True,
        text=True,
        check=False,
    )
    taken.close()

    assert process.returncode == 2
    assert f"127.0.0.1:{port} is used by another process" in process.stderr
