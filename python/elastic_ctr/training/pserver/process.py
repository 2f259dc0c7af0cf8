"""The process of Paddle's parameter server. It never releases the GIL, so its supervisor watches it from outside.

    python -m elastic_ctr.training.pserver.process SPEC.json

SPEC: {"model": …, "input": {…}, "servers": 2, "index": 0, "scratch": "…", "parent": 123}. The process listens on a Unix socket in
`scratch`. It ends with the process `parent`, if that is given, or with REFUSED and a message if a network of the user's own is unusable.
"""

import json
import os
import sys
from pathlib import Path

from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.runtime.child_process import die_with_parent
from elastic_ctr.training.control.server_sockets import paddle_endpoints, socket_name
from elastic_ctr.training.model.networks.inspection import inspect_own
from elastic_ctr.training.model.networks.own import NetworkRefused
from elastic_ctr.training.model.program import build_program, prepare_environment, start_paddle

REFUSED = 2


def main() -> None:
    """Serve for ever."""
    spec = json.loads(Path(sys.argv[1]).read_text())
    if (parent := spec.get("parent")) is not None:
        die_with_parent(parent)
    model = Model.model_validate(spec["model"])
    prepare_environment(Path(spec["scratch"]))
    # The socket of an ended server would prevent the bind.
    Path(socket_name(spec["index"])).unlink(missing_ok=True)
    start_paddle(model)
    from paddle.distributed import fleet

    given = ModelInput(**spec["input"])
    try:
        inspect_own(model, given)
    except NetworkRefused as refused:
        print(f"the network cannot be trained: {refused}", file=sys.stderr, flush=True)  # noqa: T201 (its last words)
        os._exit(REFUSED)
    role = fleet.UserDefinedRoleMaker(
        current_id=spec["index"],
        role=fleet.Role.SERVER,
        worker_num=1,
        server_endpoints=paddle_endpoints(spec["servers"]),
    )
    fleet.init(role)
    build_program(model, given)
    fleet.init_server()
    fleet.run_server()


if __name__ == "__main__":
    main()
