from pathlib import Path

import pytest

from credentials import tokens
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import FileStore, Store, StoreError, open_store
from elastic_ctr.store.backends.hdfs import WebHdfs
from elastic_ctr.store.backends.webdav import WebDav


def test_a_folder_is_a_store(tmp_path: Path) -> None:
    folder = tmp_path / "with space"

    store = open_store(StoreConfig(url=f"file://{tmp_path}/with%20space"))

    assert isinstance(store, FileStore)
    assert isinstance(store, Store)
    assert store.root == folder.resolve()


def test_a_store_is_found_again_by_its_own_address(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "100% sure")

    again = open_store(StoreConfig(url=store.url))

    assert isinstance(again, FileStore)
    assert again.root == store.root


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("http://file-server:8080", WebDav),
        ("https://file-server/folder/", WebDav),
        ("hdfs://namenode:9000/ctr", WebHdfs),
        ("webhdfs://namenode:9870", WebHdfs),
        ("hdfs://nn1:9000,nn2:9000", WebHdfs),
    ],
)
def test_a_distant_store_is_opened_without_asking_it_anything(url: str, kind: type) -> None:
    store = open_store(StoreConfig(url=url, user="alice"), tokens=tokens("secret"))

    assert isinstance(store._backend, kind)
    assert isinstance(store, Store)
    assert store.url == url.rstrip("/")
    assert store.local_path("a") is None
    store.close()


@pytest.mark.parametrize(
    "url", ["", "somewhere", "http:///x", "HTTP//x", "file://host/dir", "ftp://x/y", "file:relative", "s3:///x"]
)
def test_an_address_that_is_no_store_is_refused_with_the_way_out(url: str) -> None:
    with pytest.raises(StoreError, match="is not understood; give file:///a/folder"):
        open_store(StoreConfig().moved(url))
