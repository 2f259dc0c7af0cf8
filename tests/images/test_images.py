"""What is in the images, and that every role starts in its own as a pod starts it."""

import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from elastic_ctr.operate.cli.main import COMMANDS, ROLES
from images.containers import Image, Start

ROOT = Path(__file__).parents[2]
CONFIG = "/etc/elastic-ctr/config/config.yaml"
IMAGE_OF = {
    "master": "cube", "cube-transfer": "cube", "cube-builder": "cube", "cube-server": "cube", "intake": "cube",
    "trainer": "trainer", "pserver": "trainer", "serving": "serving", "scoring": "serving",
}  # fmt: skip
LOCK_OF = {"cube": "cube", "trainer": "run"}

Images = Callable[[str], Image]


def short(image: Image) -> str:
    return image.name.rpartition("/")[2].partition(":")[0]


def test_each_role_has_an_image() -> None:
    assert set(IMAGE_OF) == {name for name, (_, _, panel) in COMMANDS.items() if panel == ROLES}


def test_the_cube_image_has_no_paddle(images: Images) -> None:
    cube = images("cube")

    found = cube.sh("find / -xdev -iname '*paddle*' -not -path '/proc/*' 2>/dev/null")

    assert found.out == ""
    assert cube.python("import paddle").code == 1


def test_serving_has_the_trainers_files_and_is_run_as_it_is(images: Images) -> None:
    trainer, serving = images("trainer"), images("serving")

    assert serving.layers == trainer.layers
    for each in ("User", "Env", "WorkingDir", "Entrypoint", "Cmd"):
        assert serving.config.get(each) == trainer.config.get(each), each


def test_paddle_can_train_and_predict_where_it_must(images: Images) -> None:
    done = images("trainer").python(
        "import zlib\nimport paddle, paddle.distributed.fleet, paddle.inference\n"
        "from elastic_ctr.training.trainer import engine\nprint(paddle.__version__)"
    )

    assert done.out.split()[-1:] == ["2.6.2"], done.err


def test_an_image_holds_the_locked_packages_and_no_others(image: Image) -> None:
    # Cython builds a wheel of the second, and stays behind.
    files = (ROOT / "requirements" / f"{each}.txt" for each in (LOCK_OF[short(image)], "kerberos"))
    lock = "".join(each.read_text() for each in files).replace("\\\n", "")
    asked = image.python(
        "from importlib.metadata import distributions\nimport platform, sys\n"
        "print(platform.python_version(), platform.machine())\n"
        "for each in distributions(): print(each.name, each.version)"
    )
    (version, machine), *found = [line.split() for line in asked.out.splitlines()]
    here = {
        "python_version": ".".join(version.split(".")[:2]), "python_full_version": version, "platform_machine": machine,
        "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
    }  # fmt: skip
    locked = [
        Requirement(line.partition(" --hash")[0])
        for line in lock.splitlines()
        if line[:1].isalnum() and not line.startswith("cython=")
    ]
    wanted = {
        (canonicalize_name(each.name), str(each.specifier).removeprefix("=="))
        for each in locked
        if each.marker is None or each.marker.evaluate(here)
    }

    assert {(canonicalize_name(name), its) for name, its in found} - wanted == {("elastic-ctr", _version())}
    assert wanted <= {(canonicalize_name(name), its) for name, its in found}


def _version() -> str:
    from elastic_ctr import __version__

    return __version__


def test_nothing_that_builds_or_installs_is_left(image: Image) -> None:
    tools = image.sh("for each in gcc cc c++ ld as strip make pip pip3 uv; do command -v $each; done; true")
    modules = image.sh(
        "for each in python /usr/local/bin/python; do $each -c 'import pip' 2>/dev/null && echo $each has pip; done; true"
    )
    leftovers = image.sh(
        "ls -d /src /opt/wheels /opt/build /opt/package /root/.cache /var/lib/apt/lists/* 2>/dev/null; true"
    )

    assert (tools.out, modules.out) == ("", "")
    assert leftovers.out == ""


def test_it_runs_as_nobody_in_particular_on_a_root_that_cannot_be_written(image: Image) -> None:
    done = image.sh("id -u; id -g; echo $HOME; pwd; touch /tmp/x && echo yes; touch /opt/x /var/lib/elastic-ctr/x")

    assert done.out.split() == ["10001", "10001", "/tmp", "/tmp", "yes"]
    assert image.config["User"] == "10001:10001"
    assert image.config["Entrypoint"] == ["elastic-ctr"]


@pytest.mark.parametrize("name", ["cube", "trainer", "serving"])
def test_it_says_what_it_is(images: Images, name: str) -> None:
    labels = images(name).config["Labels"]

    assert labels["org.opencontainers.image.title"] == f"elastic-ctr {name}"
    assert labels["org.opencontainers.image.version"]
    assert labels["org.opencontainers.image.revision"]
    assert labels["org.opencontainers.image.description"]
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_bytecode_does_not_depend_on_the_time_of_its_source(image: Image) -> None:
    # Two builds would differ by it, and a layer whose files are dated anew would have no bytecode that Python accepts.
    done = image.python(
        "from pathlib import Path\n"
        "files = list(Path('/opt/elastic-ctr').rglob('*.pyc'))\n"
        "print(len(files) > 500, [str(each) for each in files if each.read_bytes()[4:8] != bytes([1, 0, 0, 0])])"
    )

    assert done.out == "True []\n", done.err


def test_every_command_says_how_it_is_used(image: Image) -> None:
    assert "Roles (a container runs one)" in image.run("--help").out

    # In one container: most of the time of a short one goes into its start and the copy of the machine code.
    failed = image.sh(f"for name in {' '.join(COMMANDS)}; do elastic-ctr $name --help >/dev/null || echo $name; done")

    assert (failed.out, failed.code) == ("", 0), failed.err


@pytest.mark.parametrize("role", IMAGE_OF)
def test_a_role_without_its_config_ends_with_one_sentence(images: Images, role: str) -> None:
    done = images(IMAGE_OF[role]).run(role, options=["--env", f"ELASTIC_CTR_CONFIG={CONFIG}"])

    assert (done.code, done.out, done.err) == (2, "", f"{CONFIG} cannot be read: No such file or directory\n")


def test_machine_code_is_for_any_cpu_and_came_with_the_image(image: Image) -> None:
    everything = (ROOT / "images" / "steps" / "compile.py").read_text().replace("sys.argv[1:]", "[9, 17, 33]")
    copied = 'import subprocess; subprocess.run(["elastic-ctr", "version"], check=True)\n'

    done = image.python(copied + everything, "--env", "NUMBA_DEBUG_CACHE=1")

    assert done.code == 0, done.err
    assert "data loaded" in done.out
    assert "saved" not in done.out
    assert image.environment["NUMBA_CPU_NAME"] == "generic"


def test_two_that_start_at_once_leave_one_copy_of_the_machine_code(image: Image) -> None:
    done = image.sh("elastic-ctr version & elastic-ctr version & wait; ls /tmp; find /tmp/numba -name '*.nbi' | wc -l")

    assert done.err == ""
    *_, version, folder, files = done.out.split()
    assert (version, folder) == (_version(), "numba")
    assert int(files) > 20


def test_without_a_place_for_machine_code_it_starts_all_the_same(image: Image) -> None:
    done = image.run("version", options=["--env", "NUMBA_CACHE_DIR=/opt/nowhere/numba"])

    assert (done.code, done.out, done.err) == (0, f"{_version()}\n", "")


def test_a_cube_server_answers_soon_after_its_start(
    images: Images, start: Start, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(
        "host: 0.0.0.0\nmodel: {network: slot-dnn}\ncube: {cacheDir: /tmp/cache, workers: 2}\n"
        "store: {url: file:///tmp/store}\ntransferAddress: 127.0.0.1:1\n"
    )
    tmp_path.chmod(0o755)
    server = start(
        images("cube"),
        "cube-server",
        mounts={tmp_path: "/etc/elastic-ctr/config"},
        ports=[8600, 8601],
        options=["--env", f"ELASTIC_CTR_CONFIG={CONFIG}"],
    )
    admin = server.address(8601)

    server.until("the server lives", lambda: _answer(f"http://{admin}/healthz") == 200)
    alive = time.monotonic() - server.started
    server.until("every worker answers", lambda: server.log().count("answers lookups") == 2)
    ready = time.monotonic() - server.started
    with socket.create_connection(("127.0.0.1", int(server.address(8600).rpartition(":")[2])), timeout=5) as client:
        client.sendall(b"ECTR" + (1).to_bytes(2, "little") + bytes(10))
        hello = client.recv(4)

    with capsys.disabled():
        print(f"\ncube-server: alive after {alive:.2f} s, lookups after {ready:.2f} s (with the container's own start)")
    assert hello == b"ECTR"
    assert "slower" not in server.log()
    assert server.stop() == 0


def test_a_role_that_is_told_to_end_while_it_starts_ends(images: Images, start: Start, tmp_path: Path) -> None:
    # The role waits for the text of its settings, before it has handlers of its own.
    os.mkfifo(settings := tmp_path / "config.yaml")
    settings.chmod(0o644)
    tmp_path.chmod(0o755)
    role = start(
        images("cube"),
        "cube-server",
        mounts={tmp_path: "/etc/elastic-ctr/config"},
        options=["--env", f"ELASTIC_CTR_CONFIG={CONFIG}"],
    )
    writer = role.until("the role reads its settings", lambda: _opened(settings))
    try:
        assert role.stop() == 128 + signal.SIGTERM
    finally:
        os.close(writer)


def _opened(fifo: Path) -> int | None:
    """Return a descriptor to write to the fifo, or None while nobody reads it."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return None


def _answer(url: str) -> int | None:
    try:
        return httpx.get(url, timeout=2, trust_env=False).status_code
    except httpx.HTTPError:
        return None
