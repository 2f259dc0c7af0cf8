"""An archive on a real web server, unpacked."""

import hashlib
import io
import tarfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from elastic_ctr.formats.imports.importers import ImportRefused
from elastic_ctr.operate.cli.import_archive import fetched

Served = Callable[[bytes], str]


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    folder = tmp_path / "www"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()

        def serve(content: bytes) -> str:
            (folder / "logs.tar.gz").write_bytes(content)
            return f"http://127.0.0.1:{server.server_port}/logs.tar.gz"

        yield serve
        server.shutdown()


def tar_of(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode=mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return raw.getvalue()


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_the_files_of_an_archive_are_in_the_folder(tmp_path: Path, served: Served, mode: str) -> None:
    content = tar_of({"a": b"1", "day/b": b"22"}, mode)
    digest = hashlib.sha256(content).hexdigest()

    told = fetched(served(content), tmp_path / "out", digest.upper())

    assert (tmp_path / "out/a").read_bytes() == b"1"
    assert (tmp_path / "out/day/b").read_bytes() == b"22"
    assert told.startswith("2 files of http://127.0.0.1:")
    assert told.endswith(f"sha256 {digest}")


@pytest.mark.parametrize(
    ("content", "digest", "reason"),
    [
        (tar_of({"a": b"x" * 100_000}), "0" * 64, "has the digest"),
        (tar_of({"a": bytes(range(256)) * 4_000})[:-900], None, "is no whole tar archive"),
        (b"no archive", None, "is no whole tar archive"),
        (tar_of({"../../evil": b"x"}), None, "is no whole tar archive"),
    ],
)
def test_a_damaged_archive_or_one_that_leads_out_of_the_folder_leaves_nothing(
    tmp_path: Path, served: Served, content: bytes, digest: str | None, reason: str
) -> None:
    with pytest.raises(ImportRefused, match=reason):
        fetched(served(content), tmp_path / "out", digest)

    assert sorted(each.name for each in tmp_path.iterdir()) == ["www"]


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://user:secret@host/a.tar", "https://host", "logs.tar.gz"])
def test_an_address_of_another_kind_is_refused_without_its_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(ImportRefused, match="is no address of an archive") as refused:
        fetched(url, tmp_path / "out")

    assert "secret" not in str(refused.value)


def test_a_folder_with_files_and_an_absent_server_are_refused(tmp_path: Path, served: Served) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine").touch()
    url = served(tar_of({"a": b"1"}))

    with pytest.raises(ImportRefused, match="is there and no empty folder"):
        fetched(url, tmp_path / "out")
    with pytest.raises(ImportRefused, match=r"cannot be unpacked .* HTTP Error 404"):
        fetched(f"{url}.other", tmp_path / "new")
    with pytest.raises(ImportRefused, match=r"cannot be unpacked .*refused"):
        fetched("http://127.0.0.1:9/a.tar", tmp_path / "new")
    with pytest.raises(ImportRefused, match=r"cannot be unpacked .*nonnumeric port"):
        fetched("http://127.0.0.1:web/a.tar", tmp_path / "new")


def test_a_python_that_would_follow_an_archive_out_of_its_folder_is_refused(
    tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(tarfile, "data_filter")

    with pytest.raises(ImportRefused, match=r"3\.11\.4"):
        fetched(served(tar_of({"a": b"1"})), tmp_path / "out")

    assert not (tmp_path / "out").exists()
