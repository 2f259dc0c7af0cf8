"""Requests that are small on the wire and large in memory, against real server processes."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest

from contract import serving_world
from contract.serving_world import FEATURES, FIRST, Cube, Exported, Transfer, line_of, put_version, serving
from elastic_ctr.serving import open_inference_pb2 as messages
from elastic_ctr.serving.frontends.grpc import SERVICE
from elastic_ctr.store.backends import FileStore
from ports import free_port
from serving.growing import SMALL_THAT_GROW, nested, request_of

# pytest finds fixtures by the names of a module.
exports, started_cube, cube = serving_world.exports, serving_world.started_cube, serving_world.cube
store, transfer, scratch = serving_world.store, serving_world.transfer, serving_world.scratch

MIB = 1 << 20
OPTIONS = [("grpc.enable_http_proxy", 0), ("grpc.max_send_message_length", -1)]


def peak_mib(pid: int) -> float:
    """The most memory that a process has ever had resident."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


BYTES = 32 * MIB


# tests/unit/serving/test_grpc_frontend.py refuses such messages before they are parsed; here their memory is measured.
@pytest.mark.nightly
async def test_requests_that_would_grow_in_memory_are_refused_and_others_are_answered_meanwhile(
    exports: dict[int, Exported], cube: Cube, store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    put_version(store, exports[FIRST])
    await transfer.publish(live=FIRST, wanted=(FIRST,), holders={FIRST: cube.holders()})
    everyday = request_of(nested(3, b"\x01") + nested(5, nested(8, line_of(FEATURES[0]).encode())))
    refused = {}
    async with serving(store, transfer, scratch, grpc_port=free_port(), max_body_bytes=2 * BYTES) as running:
        await running.until_version(FIRST)
        [worker] = running.process.workers.in_order()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.grpc_port}", options=OPTIONS) as channel:
            infer = channel.unary_unary(f"/{SERVICE}/ModelInfer")
            await infer(everyday, timeout=60)
            # Machine code that is compiled meanwhile takes memory, too.
            await running.until(lambda: not worker.watchdog.busy)
            before = peak_mib(worker.process.pid)
            for name, made in SMALL_THAT_GROW.items():
                asked = asyncio.create_task(infer(made(BYTES), timeout=120).code())
                while not asked.done():
                    answer = messages.ModelInferResponse.FromString(await infer(everyday, timeout=120))
                    assert answer.outputs[0].contents.fp32_contents[0] == pytest.approx(
                        exports[FIRST].probability(FEATURES[0]), abs=1e-5
                    )
                refused[name] = await asked
            grown = peak_mib(worker.process.pid) - before

    code = dict.fromkeys(SMALL_THAT_GROW, grpc.StatusCode.RESOURCE_EXHAUSTED)
    assert refused == {**code, "behind a group": grpc.StatusCode.INVALID_ARGUMENT}
    # gRPC has the message twice while it puts it together, and the last one may not have been given back.
    assert grown < 8 * BYTES / MIB


async def test_a_large_request_to_a_small_method_is_refused(
    store: FileStore, transfer: Transfer, scratch: Path
) -> None:
    await transfer.publish()
    async with serving(store, transfer, scratch, grpc_port=free_port()) as running:
        await running.until(lambda: any(each.listening for each in running.process.workers.in_order()))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{running.grpc_port}", options=OPTIONS) as channel:
            for method in ("inference.GRPCInferenceService/ModelMetadata", "grpc.health.v1.Health/Check"):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await channel.unary_unary(f"/{method}")(nested(1, bytes(MIB)), wait_for_ready=True, timeout=60)
                assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED


MASTER = """
import sys, time
from elastic_ctr.training.master.server import ControlServicer, start_server
from elastic_ctr.runtime.access import Access
from elastic_ctr.runtime.audit import AuditLog
from elastic_ctr.runtime.auth import Right, Token, Tokens

class Coordinator:
    def join(self, *_):
        from elastic_ctr.training.control import control_pb2
        return control_pb2.JoinReply(trainer_id=7)

access = Access({Right.INTERNAL: Tokens([Token("test", "the-token")])}, AuditLog("master"))
server = start_server(ControlServicer(Coordinator(), lambda *_: None, access), "127.0.0.1", int(sys.argv[1]))
print("up", flush=True)
time.sleep(3600)
"""


@pytest.fixture
def master() -> Iterator[tuple[int, int]]:
    """The pid and port of a process with the master's gRPC server."""
    port = free_port()
    process = subprocess.Popen([sys.executable, "-c", MASTER, str(port)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n"
        yield process.pid, port
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_the_master_reads_no_message_of_a_caller_without_the_token(master: tuple[int, int]) -> None:
    pid, port = master
    before = peak_mib(pid)
    message = bytes(200 * MIB)
    with grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
        asked = [channel.unary_unary("/elastic_ctr.control.Control/SyncPserver").future(message) for _ in range(3)]
        codes = [each.code() for each in asked]
        with_token = [("authorization", "Bearer the-token")]
        answer = channel.unary_unary("/elastic_ctr.control.Control/JoinTrainer")(b"", metadata=with_token, timeout=60)
        with pytest.raises(grpc.RpcError) as too_large:
            channel.unary_unary("/elastic_ctr.control.Control/JoinTrainer")(bytes(2 * MIB), metadata=with_token)

    assert codes == [grpc.StatusCode.UNAUTHENTICATED] * 3
    assert answer == b"\x10\x07"
    assert too_large.value.code() == grpc.StatusCode.INTERNAL
    assert peak_mib(pid) - before < 100
