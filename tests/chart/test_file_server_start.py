"""What the file-server's container runs, with its folders elsewhere and a program that stands for nginx."""

import subprocess
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from chart.rendering import Renderer
from needs import program
from ports import free_port
from waiting import until

FOLDERS = ("/etc/elastic-ctr", "/run/elastic-ctr", "/data")


@pytest.fixture
def start(render: Renderer, tmp_path: Path) -> Path:
    script: str = render().one("ConfigMap", name="ctr-file-server").raw["data"]["start.sh"]
    for folder in FOLDERS:
        (tmp_path / folder[1:]).mkdir(parents=True)
        script = script.replace(f"{folder}/", f"{tmp_path}{folder}/")
    for name in ("nginx.conf", "tokens.conf"):
        file = tmp_path / "etc/elastic-ctr/config" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(name)
    (tmp_path / "etc/elastic-ctr/auth").mkdir()
    script = script.replace("sleep 5", "sleep 0.1")
    nginx = tmp_path / "bin/nginx"
    nginx.parent.mkdir()
    nginx.write_text("#!/bin/sh\necho started\n")
    nginx.chmod(0o755)
    file = tmp_path / "start.sh"
    file.write_text(script)
    return file


def started(start: Path, tokens: str) -> subprocess.CompletedProcess[str]:
    (start.parent / "etc/elastic-ctr/auth/internal").write_text(tokens)
    path = f"{start.parent / 'bin'}:/usr/bin:/bin"
    # Not pipes: what looks after the tokens has them open for a moment longer.
    out, error = start.parent / "out", start.parent / "error"
    with out.open("w") as stdout, error.open("w") as stderr:
        done = subprocess.run(["sh", str(start)], env={"PATH": path}, stdout=stdout, stderr=stderr, check=False)
    return subprocess.CompletedProcess(done.args, done.returncode, out.read_text(), error.read_text())


def valid(start: Path) -> set[str]:
    """Empty before it has begun."""
    return {each.name for each in (start.parent / "run/elastic-ctr/tokens").glob("*")}


def test_nginx_gets_the_tokens_as_names_of_files(start: Path) -> None:
    done = started(start, "release Ab.c+d=f~g_h-1\nnext .hidden")

    assert done.stdout == "started\n", done.stderr
    folder = start.parent / "run/elastic-ctr/tokens"
    assert valid(start) == {"Ab.c+d=f~g_h-1", ".hidden"}
    assert folder.stat().st_mode & 0o077 == 0
    assert (start.parent / "data/store").stat().st_mode & 0o077 == 0o055


@pytest.mark.parametrize("ipv6", [True, False])
def test_nginx_listens_on_every_address_that_the_kernel_has(start: Path, ipv6: bool) -> None:
    marker = start.parent / "if_inet6"
    start.write_text(start.read_text().replace("/proc/net/if_inet6", str(marker)))
    if ipv6:
        marker.touch()
    assert started(start, "release abc").returncode == 0
    listen = (start.parent / "run/elastic-ctr/listen.conf").read_text()
    assert listen == ("listen [::]:8080 ipv6only=off;\n" if ipv6 else "listen 8080;\n")

    port = free_port()
    listen = listen.replace("8080", str(port))
    configuration = start.parent / "run/real.conf"
    configuration.write_text(
        f"daemon off; master_process off; pid {start.parent}/pid; error_log stderr;\n"
        f"events {{}} http {{ access_log off; server {{ {listen} return 204; }} }}\n"
    )
    with subprocess.Popen(
        [program("nginx"), "-e", "stderr", "-p", str(start.parent), "-c", str(configuration)]
    ) as nginx:
        try:
            until(lambda: answers("127.0.0.1", port))
            if ipv6 and Path("/proc/net/if_inet6").exists():
                assert answers("::1", port)
        finally:
            nginx.terminate()


def answers(host: str, port: int) -> bool:
    try:
        with closing(HTTPConnection(host, port, timeout=5)) as connection:
            connection.request("GET", "/")
            return connection.getresponse().status == 204
    except ConnectionRefusedError:
        return False


@pytest.mark.parametrize(
    "tokens",
    ["", "\n", "word", "two words too many", 'n a"b', "n a$b", "n (a)", "n a/b", "n ..", "n ä", "a 1\nb 2\nc 3"],
)
def test_tokens_that_roles_would_refuse_are_refused(start: Path, tokens: str) -> None:
    done = started(start, tokens)

    assert done.returncode == 2
    assert "the key internal of the Secret ctr-auth is not one or two lines 'name token'" in done.stderr
    assert valid(start) == set()


def test_a_replaced_token_is_taken_while_nginx_runs_and_the_former_one_goes(start: Path) -> None:
    secret = start.parent / "etc/elastic-ctr/auth/internal"
    nginx = start.parent / "bin/nginx"
    nginx.write_text("#!/bin/sh\nexec sleep 60\n")
    secret.write_text("release one\n")
    process = subprocess.Popen(["sh", str(start)], env={"PATH": f"{nginx.parent}:/usr/bin:/bin"})
    try:
        for text, wanted in (
            ("release one", {"one"}),
            ("release one\nnext two", {"one", "two"}),
            ("not understood at all", {"one", "two"}),
            ("next two", {"two"}),
        ):
            (secret.parent / "new").write_text(text)
            (secret.parent / "new").replace(secret)
            ends = time.monotonic() + 60
            while valid(start) != wanted:
                assert time.monotonic() < ends
                time.sleep(0.05)
    finally:
        process.kill()
        process.wait()
