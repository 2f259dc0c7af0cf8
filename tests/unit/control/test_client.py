from typing import Any

import grpc
import pytest

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.control.client import MasterClient


class Failed(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, code: grpc.StatusCode) -> None:
        self._code = code

    def code(self) -> grpc.StatusCode:
        return self._code


class Answers(MasterClient):
    """The master's answers, one after the other."""

    def __init__(self, *answers: Any) -> None:
        super().__init__("127.0.0.1:1", "")
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
