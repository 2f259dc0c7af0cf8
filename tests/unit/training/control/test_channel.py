import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import grpc
import pytest

from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.control import control_pb2_grpc
from elastic_ctr.training.control.channel import ForeignMasterGrace, MasterClient


class Failed(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code


class Answers(MasterClient):
    """The master's answers, one after the other."""

    def __init__(self, *answers: Any) -> None:
        super().__init__("127.0.0.1:1", None)
        self.answers = list(answers)

    def call_once(self, method: str, request: Any, timeout: float = 10) -> Any:  # noqa: ARG002
        answer = self.answers.pop(0)
        if isinstance(answer, grpc.StatusCode):
            raise Failed(answer)
        return answer


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED]
)
def test_a_master_that_is_away_is_asked_again(code: grpc.StatusCode) -> None:
    client = Answers(code, code, "yes")

    assert client.call("JoinTrainer", control.JoinRequest()) == "yes"
    client.close()


@pytest.mark.parametrize(
    "code", [grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNIMPLEMENTED]
)
def test_any_other_refusal_is_the_callers_to_see(code: grpc.StatusCode) -> None:
    client = Answers(code, "never asked for")

    with pytest.raises(grpc.RpcError) as refused:
        client.call("JoinTrainer", control.JoinRequest())

    assert refused.value.code() == code
    assert client.answers == ["never asked for"]
    client.close()


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    await end(writer)


async def end(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()


async def test_a_connection_that_leads_to_nobody_is_given_up_for_another() -> None:
    """Such as one to the address of a pod that has gone: nothing refuses it, and nobody speaks on it."""
    master = grpc.server(ThreadPoolExecutor(1))
    control_pb2_grpc.add_ControlServicer_to_server(control_pb2_grpc.ControlServicer(), master)
    port = master.add_insecure_port("127.0.0.1:0")
    master.start()
    connections = []

    async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(asyncio.current_task())
        if len(connections) == 1:
            await reader.read()
            await end(writer)
            return
        there, back = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, back), pass_on(there, writer))

    between = await asyncio.start_server(met, "127.0.0.1", 0)
    client = MasterClient(f"127.0.0.1:{between.sockets[0].getsockname()[1]}", None)
    asked = asyncio.to_thread(client.call, "LeaveTrainer", control.Membership())

    with pytest.raises(grpc.RpcError) as reached:
        await asyncio.wait_for(asked, 15)

    assert reached.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert len(connections) == 2
    client.close()
    await asyncio.gather(*filter(None, connections))
    between.close()
    master.stop(0).wait()


def test_a_master_of_the_same_training_is_followed_at_once() -> None:
    assert ForeignMasterGrace(lambda: 0.0).may_end(wrong_training=False)


def test_a_master_of_another_training_is_followed_after_a_while() -> None:
    now = [100.0]
    one = ForeignMasterGrace(lambda: now[0])

    assert not one.may_end(wrong_training=True)
    now[0] += ForeignMasterGrace.SECONDS - 1
    assert not one.may_end(wrong_training=True)
    now[0] += 1
    assert one.may_end(wrong_training=True)


def test_the_while_begins_anew_with_every_master_of_the_same_training() -> None:
    now = [100.0]
    one = ForeignMasterGrace(lambda: now[0])
    one.may_end(wrong_training=True)
    now[0] += ForeignMasterGrace.SECONDS
    one.may_end(wrong_training=False)

    assert not one.may_end(wrong_training=True)
