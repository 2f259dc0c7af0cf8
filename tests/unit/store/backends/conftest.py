import socket
from collections.abc import Iterator
from typing import Any

import pytest
import stamina


@pytest.fixture
def no_pauses() -> Iterator[None]:
    """Tries follow one another at once; there are enough of them."""
    with stamina.set_testing(True, attempts=1000):
        yield


@pytest.fixture(autouse=True)
def _names_that_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names below .invalid do not exist, also where no name server answers (a machine without network)."""
    ask = socket.getaddrinfo

    def answer(host: Any, *more: Any, **named: Any) -> Any:
        if str(host).endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return ask(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
