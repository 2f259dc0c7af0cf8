"""Servers that take a while to start are started once."""

from collections.abc import Iterator

import pytest

from contract.bucket_world import BucketServer, s3proxy, versitygw
from contract.file_server_world import FileServer, file_server_world
from contract.hadoop_world import Hadoop, secure_hadoop_world, why_not
from contract.kerberos_world import Kdc


@pytest.fixture(scope="session")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    if why_not():
        pytest.skip(why_not())
    made = Hadoop(tmp_path_factory.mktemp("hadoop"))
    try:
        yield made.start()
    finally:
        made.stop()


@pytest.fixture(scope="session")
def _secure_hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hadoop, Kdc]]:
    with secure_hadoop_world(tmp_path_factory.mktemp("secure")) as made:
        yield made


@pytest.fixture
def secure_hadoop(_secure_hadoop: tuple[Hadoop, Kdc], monkeypatch: pytest.MonkeyPatch) -> tuple[Hadoop, Kdc]:
    """An HDFS that wants Kerberos, and its KDC; this process finds both by its environment."""
    for name, value in _secure_hadoop[1].environment.items():
        monkeypatch.setenv(name, value)
    return _secure_hadoop


@pytest.fixture
def file_server() -> Iterator[FileServer]:
    with file_server_world() as made:
        yield made


@pytest.fixture(scope="session")
def bucket_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    with s3proxy(tmp_path_factory.mktemp("s3proxy")) as made:
        yield made


@pytest.fixture(scope="session")
def second_bucket_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BucketServer]:
    with versitygw(tmp_path_factory.mktemp("versitygw")) as made:
        yield made
