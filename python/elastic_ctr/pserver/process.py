"""The process that runs Paddle's parameter server. It never releases the GIL, so its supervisor watches it from outside.

    python -m elastic_ctr.pserver.process SPEC.json

SPEC: {"model": …, "slots": […], "endpoints": […], "index": 0, "scratch": "…"}. Ends with its parent.
"""

import json
import sys
from pathlib import Path

from elastic_ctr.config.model import Model
from elastic_ctr.model.program import build_program, prepare_environment, start_paddle


def serve(model: Model, slots: list[str], endpoints: list[str], index: int, scratch: Path) -> None:
    """Does not return."""
    prepare_environment(scratch)
    start_paddle(model)
    from paddle.distributed import fleet

    fleet.init(
        fleet.UserDefinedRoleMaker(current_id=index, role=fleet.Role.SERVER, worker_num=1, server_endpoints=endpoints)
    )
    build_program(model, slots)
    fleet.init_server()
    fleet.run_server()


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    serve(Model.model_validate(spec["model"]), spec["slots"], spec["endpoints"], spec["index"], Path(spec["scratch"]))


if __name__ == "__main__":
    main()
