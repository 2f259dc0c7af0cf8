"""Real servers of buckets: S3Proxy, which keeps them in memory, versitygw, which keeps them in a folder, and rclone, which has no
conditional writes.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from obstore.exceptions import GenericError
from obstore.store import S3Store

from elastic_ctr.config.buckets import BucketSettings
from elastic_ctr.config.store_settings import StoreConfig
from needs import needs, program
from ports import free_port

LIB = Path(__file__).parents[2] / "build" / "tools" / "s3proxy" / "lib"
LOGBACK = Path(__file__).parents[1] / "s3proxy" / "logback.xml"
VERSITYGW = Path(__file__).parents[2] / "build" / "tools" / "bin" / "versitygw"
RCLONE = Path(__file__).parents[2] / "build" / "tools" / "rclone" / "bin" / "rclone"
KEY, SECRET = "a-key", "a-secret/of+bytes"


def give_keys(folder: Path, key: str = KEY, secret: str = SECRET) -> Path:
    """A folder as a mounted Secret is."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "AWS_ACCESS_KEY_ID").write_text(f"{key}\n")
    (folder / "AWS_SECRET_ACCESS_KEY").write_text(f"{secret}\n")
    return folder


class BucketServer:
    """Owns a process that speaks S3, and the credentials of its one user."""

    def __init__(self, command: list[str], folder: Path, port: int, **environment: str) -> None:
        self._command = command
        self._environment = {**os.environ, **environment}
        self._log = folder / "log"
        self.port = port
        self.endpoint = f"http://127.0.0.1:{port}"
        self.keys = give_keys(folder / "keys")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "BucketServer":
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, env=self._environment)
        while not self._listens():
            if self._process.poll() is not None:
                raise RuntimeError(f"{self._command[0]} ended: {self._log.read_text()}")
            time.sleep(0.02)
        return self

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()

    @contextmanager
    def running(self) -> Iterator["BucketServer"]:
        try:
            yield self.start()
        finally:
            self.stop()

    def raw(self, bucket: str, **config: Any) -> S3Store:
        """A client of the library alone: what is really in the bucket."""
        given: Any = {"access_key_id": KEY, "secret_access_key": SECRET, "endpoint": self.endpoint, **config}
        return S3Store(bucket, config=given, client_options={"allow_http": True})

    def bucket(self, name: str | None = None) -> str:
        """A new, empty bucket."""
        made = name or f"bucket-{uuid4().hex[:12]}"
        # A PUT of /bucket creates one; to this client that is an object of the host's bucket, whose answer has no ETag.
        with suppress(GenericError):
            self.raw("none", virtual_hosted_style_request=True).put(made, b"", use_multipart=False)
        assert self.files(made) == []
        return made

    def access(self, **changes: Any) -> BucketSettings:
        given = {"endpoint": self.endpoint, "credentials": "files", "credentials_dir": str(self.keys), **changes}
        return BucketSettings(**given)

    def store(self, bucket: str, prefix: str = "models") -> StoreConfig:
        return StoreConfig(url=f"s3://{bucket}/{prefix}", bucket=self.access())

    def files(self, bucket: str) -> list[str]:
        return sorted(each["path"] for page in self.raw(bucket).list() for each in page)


def s3proxy_absent() -> str:
    """The reason to skip where S3Proxy cannot be started; else empty."""
    if not LIB.exists():
        return needs("s3proxy")
    return ""


@contextmanager
def s3proxy(folder: Path, heap: str = "512m") -> Iterator[BucketServer]:
    """A running S3Proxy; skips the test where it is absent."""
    if s3proxy_absent():
        pytest.skip(s3proxy_absent())
    java, port = program("java"), free_port()
    folder.mkdir(parents=True, exist_ok=True)
    properties = folder / "s3proxy.conf"
    properties.write_text(
        f"s3proxy.endpoint=http://127.0.0.1:{port}\n"
        f"s3proxy.authorization=aws-v2-or-v4\ns3proxy.identity={KEY}\ns3proxy.credential={SECRET}\n"
        "jclouds.provider=transient-nio2\njclouds.identity=none\njclouds.credential=none\n"
    )
    command = [
        java,
        f"-Xmx{heap}",
        "-XX:TieredStopAtLevel=1",
        f"-Dlogback.configurationFile={LOGBACK}",
        "-cp",
        f"{LIB}/*",
        "org.gaul.s3proxy.Main",
        "--properties",
        str(properties),
    ]
    with BucketServer(command, folder, port).running() as made:
        yield made


@contextmanager
def versitygw(folder: Path) -> Iterator[BucketServer]:
    """A running versitygw; skips the test where it is absent."""
    if not VERSITYGW.exists():
        pytest.skip(needs("versitygw"))
    port = free_port()
    (folder / "data").mkdir(parents=True)
    command = [str(VERSITYGW), "--port", f"127.0.0.1:{port}", "--quiet", "posix", str(folder / "data")]
    with BucketServer(command, folder, port, ROOT_ACCESS_KEY=KEY, ROOT_SECRET_KEY=SECRET).running() as made:
        yield made


@contextmanager
def rclone(folder: Path) -> Iterator[BucketServer]:
    """A running rclone, whose bucket ignores If-None-Match; skips the test where it is absent."""
    if not RCLONE.exists():
        pytest.skip(needs("rclone"))
    port = free_port()
    (folder / "data").mkdir(parents=True)
    command = [
        str(RCLONE),
        "serve",
        "s3",
        "--addr",
        f"127.0.0.1:{port}",
        "--auth-key",
        f"{KEY},{SECRET}",
        "--config",
        os.devnull,
        str(folder / "data"),
    ]
    with BucketServer(command, folder, port).running() as made:
        yield made
