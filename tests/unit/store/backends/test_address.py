"""Which address lies in which other one."""

from pathlib import Path

import pytest

from credentials import tokens
from elastic_ctr.config.buckets import BucketSettings
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends.address import lies_in, tokens_for

SECRET = tokens("secret")
STORE = "http://file-server:8080/models"


def at(url: str) -> StoreConfig:
    return StoreConfig().moved(url)


@pytest.mark.parametrize(
    ("url", "tree"),
    [
        ("file:///d", "file:///d/"),
        ("file:///d/20200401", "file:///d"),
        ("file:///d/x/../20200401", "file:///d"),
        ("file:///d%20e/x", "file:///d e"),
        ("file:///d", "file:/"),
        ("hdfs://namenode:9000/logs/a", "webhdfs://namenode:9870/logs"),
        ("http://Host/a", "http://host:80/"),
        (f"{STORE}/scores", STORE),
    ],
)
def test_an_address_lies_in_a_tree(url: str, tree: str) -> None:
    assert lies_in(at(url), at(tree))


@pytest.mark.parametrize(
    ("url", "tree"),
    [
        ("file:///d2", "file:///d"),
        ("file:///", "file:///d"),
        ("file:///d/../e", "file:///d"),
        ("hdfs://other/logs", "hdfs://namenode/logs"),
        ("hdfs://namenode/d", "file:///d"),
    ],
)
def test_an_address_lies_elsewhere(url: str, tree: str) -> None:
    assert not lies_in(at(url), at(tree))


def test_buckets_of_one_name_at_two_endpoints_are_two() -> None:
    here, there = (
        StoreConfig(url="s3://ads/models", bucket=BucketSettings(endpoint=f"https://{host}")) for host in ("a", "b")
    )

    assert lies_in(here.moved("s3://ads/models/x"), here)
    assert not lies_in(here.moved("s3://ads/models/x"), there)
    assert not lies_in(here.moved("s3://ads2/models"), here)
    assert not lies_in(here.moved("gs://ads/models"), here)


def test_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "data")

    assert lies_in(at((tmp_path / "link/out").as_uri()), at((tmp_path / "data").as_uri()))


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        (STORE, True),
        (f"{STORE}/scores/day", True),
        ("http://file-server:8080/models2", False),
        ("http://file-server:8080/models/../other", False),
        ("http://file-server:8080/models/%2e%2e/other", False),
        ("http://file-server:8081/models/x", False),
        ("https://file-server:8080/models/x", False),
        ("http://file-server:8080@elsewhere/models/x", False),
        ("http://elsewhere:8080/models/x", False),
    ],
)
def test_a_token_is_sent_to_its_own_store_alone(url: str, sent: bool) -> None:
    assert tokens_for(at(url), at(STORE), SECRET) == (SECRET if sent else None)
