"""An intake in this process, behind its own HTTP server in a thread, and what its callers send."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from credentials import access, tokens
from elastic_ctr.config.data import Data
from elastic_ctr.config.features import Features
from elastic_ctr.config.intake_settings import IntakeConfig
from elastic_ctr.config.role_files import IntakeFile
from elastic_ctr.runtime.auth import bearer
from elastic_ctr.runtime.http import serving
from elastic_ctr.sources.intake.intake_api import Intake, intake_app

TOKEN = "secret"


def intake_file(
    folder: Path, data: dict[str, Any] | None = None, features: dict[str, Any] | None = None, **changes: Any
) -> IntakeFile:
    source = {"source": {"url": "intake://"}, "start": "earliest", "slots": ["0", "1"]}
    config = IntakeConfig(dir=str(folder)).model_copy(update=changes)
    read = None if features is None else Features.model_validate(features)
    return IntakeFile(data=Data.model_validate({**source, **(data or {})}), features=read, intake=config)


class Desk:
    """`url` is the address of the server."""

    def __init__(self, intake: Intake, port: int) -> None:
        self.intake = intake
        self.port = port
        self.netloc = f"127.0.0.1:{port}"
        self.client = httpx.Client(base_url=f"http://{self.netloc}", headers=bearer(tokens(TOKEN)), timeout=30)

    @property
    def partition(self) -> str:
        return self.intake.log.partition

    def post(self, text: bytes | str, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post("/v1/clicks", content=text, headers=named)

    def metrics(self) -> dict[str, float]:
        """By name, of the intake's own."""
        lines = self.client.get("/metrics").text.splitlines()
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[0] != "#")}

    def status(self) -> dict[str, Any]:
        return dict(self.client.get("/status").json())


@contextmanager
def desk(config: IntakeFile, port: int = 0, clock: Any = None, steady: Any = None) -> Iterator[Desk]:
    """`clock` is the machine's; it is never set unless `steady` says otherwise."""
    intake = Intake(config) if clock is None else Intake(config, clock, steady or clock)
    ready, stop_here = threading.Event(), threading.Event()
    found: list[int] = []

    async def main() -> None:
        stop = asyncio.Event()
        async with serving(intake_app(intake, access(TOKEN)), "127.0.0.1", port) as server:
            found.append(server.port)
            ready.set()
            running = asyncio.create_task(intake.run(stop))
            await asyncio.to_thread(stop_here.wait)
            stop.set()
            await running

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert ready.wait(30)
    made = Desk(intake, found[0])
    try:
        yield made
    finally:
        made.client.close()
        stop_here.set()
        thread.join()
        intake.log.close()
