"""Inspects networks of the user's own: `python own_driver.py CASES.json`, a JSON list of answers on stdout.

A case has a `model` and an `input`. Its answer is the parameters' shapes by name, or the sentence that refuses it.
"""

import json
import os
import sys
import tempfile
import zlib  # noqa: F401  (before paddle)
from pathlib import Path
from typing import Any

from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.training.model.networks.inspection import inspect_own
from elastic_ctr.training.model.networks.own import NetworkRefused
from elastic_ctr.training.model.program import prepare_environment, start_paddle


def answer(case: dict[str, Any]) -> Any:
    model = Model.model_validate(case["model"])
    start_paddle(model)
    try:
        return {each.name: each.shape for each in inspect_own(model, ModelInput(**case["input"]))}
    except NetworkRefused as refused:
        return str(refused)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    cases = json.loads(Path(sys.argv[1]).read_text())
    with tempfile.TemporaryDirectory() as scratch:
        prepare_environment(Path(scratch))
        answers.write(json.dumps([answer(case) for case in cases]))
    answers.close()
    os._exit(0)


if __name__ == "__main__":
    main()
