"""The trainer's engine beside one pserver process, as benches of training start them."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.config.training_settings import TrainerConfig
from elastic_ctr.runtime.child_process import dies_with_this_process
from elastic_ctr.training.control.server_sockets import address_on_this_machine, link_sockets, socket_name


@contextmanager
def engine_beside_server(
    model: Model,
    given: ModelInput,
    folder: Path,
    *,
    threads: int = TrainerConfig().threads,
    gradient_merge: int = TrainerConfig().gradient_merge,
) -> Iterator[Any]:
    """An engine that has pushed its first values; one a process, which must end by `os._exit`."""
    server_socket = (folder / "server").absolute() / socket_name(0)
    spec = {
        "model": model.model_dump(mode="json", by_alias=True), "input": asdict(given), "servers": 1,
        "index": 0, "scratch": str(folder / "server"),
    }  # fmt: skip
    (folder / "spec.json").write_text(json.dumps(spec))
    with (folder / "server.log").open("w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "elastic_ctr.training.pserver.process", str(folder / "spec.json")],
            stdout=log,
            stderr=log,
            preexec_fn=dies_with_this_process(),  # noqa: PLW1509 (it calls prctl alone)
        )
    try:
        from elastic_ctr.training.model.program import prepare_environment
        from elastic_ctr.training.trainer.engine import Engine

        prepare_environment(folder / "engine")
        link_sockets([address_on_this_machine(server_socket)], Path())
        engine = Engine(model, given, 1, threads=threads, gradient_merge=gradient_merge)
        engine.connect(1)
        engine.initialise()
        yield engine
    finally:
        server.kill()
        server.wait()


def without_paddles_output() -> int:
    """A descriptor of standard output for the answer: Paddle prints to the first one."""
    answer = os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return answer
