"""Addresses of buckets, and the settings beside them."""

import pytest
from pydantic import ValidationError

from elastic_ctr.config.buckets import BucketSettings
from elastic_ctr.config.data import Data, DataSource
from elastic_ctr.config.store_settings import Restore, StoreConfig, check_window

GOOD = ["s3://ads", "s3://ads/models", "gs://ads.example.org/a/b%20c", "az://logs/clicks/"]
BAD = ["s3://", "s3:///models", "s3://key:secret@ads", "s3://ads?region=eu", "s3://ads/x#y", "az://a b/c"]


@pytest.mark.parametrize("url", GOOD)
def test_a_bucket_is_a_store_and_a_source(url: str) -> None:
    assert StoreConfig(url=url).url == DataSource(url=url).url == url


@pytest.mark.parametrize("url", BAD)
@pytest.mark.parametrize("kind", [StoreConfig, DataSource])
def test_an_address_that_is_no_bucket_is_refused(kind: type[StoreConfig] | type[DataSource], url: str) -> None:
    with pytest.raises(
        ValidationError, match=r"is none of|has credentials|has a query|credentials or a query"
    ) as refused:
        kind(url=url)

    assert "secret" not in str(refused.value.errors()[0]["msg"])


def test_a_bucket_is_not_followed() -> None:
    with pytest.raises(ValidationError, match="objects do not grow, so a bucket cannot be followed"):
        DataSource(url="s3://ads/clicks?follow")


@pytest.mark.parametrize("kind", [StoreConfig, DataSource])
def test_settings_of_a_bucket_are_refused_where_there_is_none(kind: type[StoreConfig] | type[DataSource]) -> None:
    with pytest.raises(ValidationError, match="bucket is of s3://, gs:// and az://, and hdfs://namenode:9000 is none"):
        kind(url="hdfs://namenode:9000", bucket=BucketSettings(region="eu-west-1"))


def archived(url: str, archive: str, **bucket: str) -> StoreConfig:
    return StoreConfig.model_validate({"url": url, "archive": {"url": archive, "bucket": bucket}})


@pytest.mark.parametrize("url", [*BAD, "hdfs://nn:9000/archive", "file:///archive", "http://file-server:8080"])
def test_an_archive_is_a_bucket(url: str) -> None:
    with pytest.raises(ValidationError, match=r"is none of s3://bucket/dir|credentials or a query"):
        archived("http://file-server:8080", url)


@pytest.mark.parametrize(
    ("url", "archive"),
    [
        ("s3://ads/a", "s3://ads/a/archive"),
        ("s3://ads/ctr/", "s3://ads/ctr"),
        ("s3://ads/archive/models", "s3://ads/archive"),
    ],
)
def test_an_archive_and_its_store_are_apart(url: str, archive: str) -> None:
    with pytest.raises(ValidationError, match=f"archive.url {archive} and url {url} are one place"):
        archived(url, archive)

    archived(url, archive, endpoint="https://minio:9000")
    archived(url, "s3://ads/a-2")


def test_an_archive_is_reached_by_its_own_settings_and_any_other_store_by_those_of_the_store() -> None:
    store = archived("http://file-server:8080", "s3://ads/archive", endpoint="https://minio:9000")

    assert store.moved("s3://ads/archive/").bucket.endpoint == "https://minio:9000"
    assert store.elsewhere("s3://ads/archive", "ann").bucket.endpoint == "https://minio:9000"
    assert store.moved("s3://ads/other").bucket.endpoint is None


def data(**changes: object) -> Data:
    given = {"source": {"url": "kafka://broker:9092/clicks"}, "start": "latest", "slots": ["0"], **changes}
    return Data.model_validate(given)


@pytest.mark.parametrize("stream", [{}, {"windowMs": 4999}])
def test_a_stream_with_short_windows_does_not_write_into_a_bucket(stream: dict[str, int]) -> None:
    with pytest.raises(
        ValueError, match=r"store\.config\.url s3://ads is a bucket.*set data\.stream\.windowMs to 5000"
    ):
        check_window(data(stream=stream), StoreConfig(url="s3://ads"))


def test_longer_windows_hours_and_other_stores_do() -> None:
    check_window(data(stream={"windowMs": 5000}), StoreConfig(url="s3://ads"))
    check_window(data(), StoreConfig(url="http://file-server:8080"))
    check_window(data(source={"url": "s3://logs"}, start="20200401/00"), StoreConfig(url="s3://ads"))


def test_a_backup_in_a_bucket_is_reached_as_the_store_unless_the_settings_of_restore_say_otherwise() -> None:
    store = StoreConfig.model_validate({"url": "s3://ctr", "bucket": {"endpoint": "https://minio:9000"}})

    as_the_store = Restore().at("s3://backups", "root", store)
    of_its_own = Restore.model_validate({"bucket": {"region": "eu-west-1"}}).at("s3://backups", "root", store)

    assert as_the_store.bucket == store.bucket
    assert (of_its_own.bucket.endpoint, of_its_own.bucket.region) == (None, "eu-west-1")


@pytest.mark.parametrize(("keytab", "user"), [("/ctr.keytab", "ctr@EXAMPLE.ORG"), (None, "archivist")])
def test_a_backup_in_hdfs_is_reached_by_the_keytab_of_the_store_and_its_user(keytab: str | None, user: str) -> None:
    store = StoreConfig(url="hdfs://nn", user="ctr@EXAMPLE.ORG", keytab=keytab)

    place = Restore().at("hdfs://archive", "archivist", store)

    assert (place.url, place.user, place.keytab) == ("hdfs://archive", user, keytab)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"url": "s3://ctr"}, "keytab is of HDFS, and s3://ctr is no address of it; leave it out"),
        ({"url": "swebhdfs://nn", "user": "root"}, "keytab goes with user, the principal whose key it has"),
    ],
)
def test_a_keytab_is_of_an_hdfs_and_of_a_principal(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        StoreConfig.model_validate({"user": "ctr@EXAMPLE.ORG", "keytab": "/ctr.keytab", **given})
