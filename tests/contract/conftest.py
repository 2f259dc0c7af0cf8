"""Servers that take a while to start are started once."""

from collections.abc import Iterator

import pytest

from contract.bucket_world import BucketServer, s3proxy, versitygw
from contract.file_server_world import FileServer, file_server_world
from contract.hadoop_world import Hadoop, why_not


@pytest.fixture(scope="session")
def hadoop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hadoop]:
    if why_not():
        pytest.skip(why_not())
    made = Hadoop(tmp_path_factory.mktemp("hadoop"))
    try:
        yield made.start()
    finally:
        made.stop()


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
