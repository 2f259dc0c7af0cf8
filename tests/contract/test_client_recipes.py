"""docs/recipes/clients.md: each program, as it is written, against a real serving process whose model takes these columns."""

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from contract import serving_world
from contract.serving_world import (
    FIRST,
    TOLERANCE,
    Cube,
    Exported,
    Transfer,
    of_columns,
    put_version,
    serving,
)
from elastic_ctr.config.feature_document import FeatureDocument
from elastic_ctr.config.features import Features
from elastic_ctr.store.backends import FileStore
from needs import needs
from ports import free_port

# pytest finds fixtures by the names of a module.
exports, started_cube = serving_world.exports, serving_world.started_cube
store, transfer, scratch = serving_world.store, serving_world.transfer, serving_world.scratch

PAGE = (Path(__file__).parents[2] / "docs" / "recipes" / "clients.md").read_text()
VERSION = 2002
# The page's columns, and one that its requests leave out.
COLUMNS = ("user", "item", "place", "device")
FEATURES = FeatureDocument(features=Features.model_validate({name: {"type": "categorical"} for name in COLUMNS}))
ROWS = [{"user": "u7", "item": "i31", "place": "paris"}, {"user": "u1", "item": "i4", "place": "rome"}]
PROGRAMS = {
    "python3": ("Python", "python", "predict.py"),
    "node": ("Node", "js", "predict.mjs"),
    "go": ("Go", "go", "predict.go"),
    "java": ("Java", "java", "Predict.java"),
}


def block(part: str, language: str) -> str:
    text = PAGE.partition(f"## {part}\n")[2].partition("\n## ")[0]
    [found] = re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return str(found)


def commands(folder: Path, at: Callable[[str], str]) -> dict[str, list[str]]:
    """What the page says to run, by the tool that it needs; the programs are saved under the names that the page has."""
    found = {
        "curl": ["bash", "-c", at(block("curl", "sh"))],
        "grpcurl": ["bash", "-c", at(block("gRPC", "sh"))],
    }
    for tool, (part, language, file) in PROGRAMS.items():
        (folder / file).write_text(at(block(part, language)))
        [command] = re.findall(rf"run\s+`({tool} [^`]+)`", PAGE)
        found[tool] = command.split()
    return found


def run(folder: Path, command: list[str]) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stdout


def probabilities_in(answer: str) -> list[float]:
    """A list alone, or the tensor of that name in a whole answer."""
    found = json.loads(answer)
    if isinstance(found, dict):
        [tensor] = [each for each in found["outputs"] if each["name"] == "probability"]
        found = tensor["data"] if "data" in tensor else tensor["contents"]["fp32_contents"]
    return [float(each) for each in found]


async def test_each_program_of_the_page_prints_the_probabilities_of_its_two_instances(
    exports: dict[int, Exported],
    started_cube: Cube,
    store: FileStore,
    transfer: Transfer,
    scratch: Path,
    tmp_path: Path,
) -> None:
    known, expected = of_columns(exports[FIRST], FEATURES, ROWS, VERSION)
    started_cube.load(known)
    put_version(store, known, columns=FEATURES, rows=list(zip(map(json.dumps, ROWS), expected, strict=True)))
    await transfer.publish(live=VERSION, wanted=(VERSION,), holders={VERSION: started_cube.holders()})
    answers, absent = {}, []
    async with serving(store, transfer, scratch, grpc_port=free_port()) as running:
        await running.until_version(VERSION)
        await running.until(lambda: all(each.listening for each in running.process.workers.in_order()))

        def at(text: str) -> str:
            # Only the ports are not as written.
            text = text.replace("127.0.0.1:8400", f"127.0.0.1:{running.port}")
            return text.replace("127.0.0.1:8402", f"127.0.0.1:{running.grpc_port}")

        for tool, command in commands(tmp_path, at).items():
            if shutil.which(tool) is None:
                absent.append(tool)
            else:
                answers[tool] = probabilities_in(await asyncio.to_thread(run, tmp_path, command))
    started_cube.unload(VERSION)

    assert len(set(expected)) == len(ROWS)
    assert answers == {tool: pytest.approx(expected, abs=TOLERANCE) for tool in answers}
    if absent:
        pytest.skip(needs(absent[0]))
