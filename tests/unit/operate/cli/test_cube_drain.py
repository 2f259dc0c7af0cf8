import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from typer.testing import CliRunner, Result

from cube.agent.doors import draining_agent
from elastic_ctr.config.load import dump
from elastic_ctr.config.model import Model
from elastic_ctr.config.role_files import Auth, CubeAgentFile, CubeServerFile, RoleFile
from elastic_ctr.config.roles import CubePodConfig, StoreConfig
from elastic_ctr.operate.cli.cube import app
from elastic_ctr.runtime.auth import Right
from elastic_ctr.runtime.http import HttpThread, application

COMMAND = str(Path(sys.executable).parent / "elastic-ctr")


@pytest.fixture
def agent() -> Iterator[HttpThread]:
    """An agent's door, which closes when it is told to drain."""
    with draining_agent("secret") as (door, _):
        yield door


def file_of(folder: Path, kind: str, port: int, token: str = "secret") -> Path:
    (folder / "internal").write_text(f"test {token}\n" if token else "")
    auth, cube = Auth.of(str(folder), [Right.INTERNAL]), CubePodConfig(agent_port=port)
    file: RoleFile = CubeServerFile(host="0.0.0.0", auth=auth, model=Model(), cube=cube)
    if kind == "agent":
        file = CubeAgentFile(host="0.0.0.0", auth=auth, store=StoreConfig(), cube=cube, transfer_address="ctr:8300")
    config = folder / "config.yaml"
    config.write_text(dump(file))
    return config


def call(*words: object) -> Result:
    return CliRunner().invoke(app, ["drain", *map(str, words)])


@pytest.mark.parametrize("kind", ["agent", "server"])
def test_each_container_of_a_pod_waits_until_the_agent_has_ended(kind: str, agent: HttpThread, tmp_path: Path) -> None:
    config = file_of(tmp_path, kind, agent.port)

    done = subprocess.run([COMMAND, "cube", "drain", "--config", config], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"the agent at http://127.0.0.1:{agent.port} has ended\n"


def test_the_file_may_be_named_by_the_environment(
    agent: HttpThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_CTR_CONFIG", str(file_of(tmp_path, "server", agent.port)))

    done = call("--json")

    assert json.loads(done.stdout) == {"agent": f"http://127.0.0.1:{agent.port}", "ended": True}


def test_a_grace_that_is_over_is_exit_code_1(tmp_path: Path) -> None:
    async def drain(request: Request) -> Response:
        return Response(status_code=202)

    door = HttpThread(application([Route("/drain", drain, methods=["POST"])]), "127.0.0.1", 0).start()

    done = call("--config", file_of(tmp_path, "server", door.port), "--grace-seconds", 0)

    door.stop()
    assert done.exit_code == 1
    assert "still drains after 0 s" in done.output


def test_a_wrong_token_is_refused_in_the_agents_words(agent: HttpThread, tmp_path: Path) -> None:
    done = call("--config", file_of(tmp_path, "agent", agent.port, token="another"))

    assert done.exit_code == 2
    assert "answers 401: this call needs the header" in done.stderr


@pytest.mark.parametrize(
    ("token", "reason"), [(None, "No such file"), ("", "is empty"), ("a b", "is not `name token`")]
)
def test_a_token_file_that_holds_none_is_named(token: str | None, reason: str, tmp_path: Path) -> None:
    config = file_of(tmp_path, "server", 1, token or "")
    if token is None:
        (tmp_path / "internal").unlink()

    done = call("--config", config)

    assert done.exit_code == 2
    assert "auth cannot be used: " in done.stderr
    assert reason in done.stderr


def test_a_file_that_is_no_cube_pods_is_refused_by_the_key(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"shrads": 3}))

    done = call("--config", config)

    assert done.exit_code == 2
    assert f"{config}: shrads is not a setting" in done.stderr


@pytest.mark.parametrize(("host", "reached"), [("0.0.0.0", "127.0.0.1"), ("::", "127.0.0.1"), ("::1", "[::1]")])
def test_the_agent_is_reached_where_it_listens(host: str, reached: str, tmp_path: Path) -> None:
    # Port 1 is nobody's: an agent that is gone.
    config = file_of(tmp_path, "server", 1)
    config.write_text(config.read_text().replace("'0.0.0.0'", f"'{host}'"))

    done = call("--config", config, "--json", "--grace-seconds", 0)

    assert json.loads(done.stdout)["agent"] == f"http://{reached}:1"


def test_draining_does_not_import_what_a_role_needs() -> None:
    listed = "import sys, elastic_ctr.operate.cli.cube; print(*{name.partition('.')[0] for name in sys.modules})"

    done = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True)

    assert not {"httpx", "numpy", "numba", "starlette", "uvicorn"} & set(done.stdout.split())
