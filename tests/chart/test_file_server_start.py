"""What the file-server's container runs, with its folders elsewhere and a program that stands for nginx."""

import subprocess
from pathlib import Path

import pytest

from chart.rendering import Renderer

FOLDERS = ("/etc/elastic-ctr", "/run/elastic-ctr", "/data")


@pytest.fixture
def start(render: Renderer, tmp_path: Path) -> Path:
    script: str = render().one("ConfigMap", name="ctr-file-server").raw["data"]["start.sh"]
    for folder in FOLDERS:
        (tmp_path / folder[1:]).mkdir(parents=True)
        script = script.replace(f"{folder}/", f"{tmp_path}{folder}/")
    for name in ("nginx.conf", "listen.conf"):
        file = tmp_path / "etc/elastic-ctr/config" / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(name)
    (tmp_path / "etc/elastic-ctr/auth").mkdir()
    nginx = tmp_path / "bin/nginx"
    nginx.parent.mkdir()
    nginx.write_text("#!/bin/sh\necho started\n")
    nginx.chmod(0o755)
    file = tmp_path / "start.sh"
    file.write_text(script)
    return file


def started(start: Path, token: str) -> subprocess.CompletedProcess[str]:
    (start.parent / "etc/elastic-ctr/auth/token").write_text(token)
    path = f"{start.parent / 'bin'}:/usr/bin:/bin"
    return subprocess.run(["sh", str(start)], env={"PATH": path}, capture_output=True, text=True, check=False)


def test_nginx_gets_the_token_sign_by_sign(start: Path) -> None:
    done = started(start, "Ab.c+d/e=f~g_h-1\n")

    assert done.stdout == "started\n", done.stderr
    written = start.parent / "run/elastic-ctr/token.conf"
    assert written.read_text() == '"~^Bearer Ab[.]c[+]d/e=f~g_h-1$" 1;\n'
    assert written.stat().st_mode & 0o077 == 0
    assert (start.parent / "data/store").is_dir()


@pytest.mark.parametrize("token", ["", "two words", 'a"b', "a$b", "(a)", "a\nb", "ä"])
def test_a_token_that_nginx_would_read_otherwise_is_refused(start: Path, token: str) -> None:
    done = started(start, token)

    assert done.returncode == 2
    assert "is empty or has characters other than letters, digits and . _ ~ + / = -" in done.stderr
    assert not (start.parent / "run/elastic-ctr/token.conf").exists()
