"""Settings of the store of model versions, and of the backup that a new release begins with."""

from pydantic import Field

from elastic_ctr.config.addresses import StoreUrl, is_bucket
from elastic_ctr.config.buckets import Addressed, BucketSettings
from elastic_ctr.config.data import Data
from elastic_ctr.config.section import Section


class StoreConfig(Addressed):
    """Where model versions live."""

    url: StoreUrl = Field(
        default="file:///var/lib/elastic-ctr/store",
        description="One place for all roles: file:///dir, http://file-server:8080, hdfs://namenode:9000/dir (addresses of HDFS as in "
        "data.source.url), or a bucket: s3://bucket/dir, gs://bucket/dir, az://container/dir.",
    )

    def elsewhere(self, url: str, user: str) -> "StoreConfig":
        """Return another store, which is reached as this one. A keytab has the key of its own user, so that one is kept with it."""
        return self.model_copy(update={"url": url, "user": user if self.keytab is None else self.user})


# A version of a stream is eleven PUTs, 28 GETs and some lists, each of 10 to 100 ms. Two a second, as by default, would not keep up, and
# would cost 21 USD a day at S3's prices; one in 5 s keeps up, and costs 3.
_LEAST_WINDOW_MS = 5000


def check_window(data: Data, store: StoreConfig) -> None:
    """Raises ValueError if a stream would write small objects into a bucket faster than one takes them."""
    if data.is_stream and is_bucket(store.url) and data.stream.window_ms < _LEAST_WINDOW_MS:
        raise ValueError(
            f"store.config.url {store.url} is a bucket, which takes no version each {data.stream.window_ms} ms: set data.stream.windowMs to "
            f"{_LEAST_WINDOW_MS} or more, or leave store.config.url out and keep the versions in the release's own file-server"
        )


class Restore(Section):
    """The backup from which an empty release begins."""

    url: StoreUrl | None = Field(
        default=None,
        description="The address of a backup, as `elastic-ctr backup --to` was given it. A master without a ledger first restores it into "
        "the empty store; one with a ledger ignores it.",
    )
    user: str = Field(
        default="root",
        min_length=1,
        description="User that reads there; HDFS checks it. With store.config.keytab it is store.config.user.",
    )
    bucket: BucketSettings = BucketSettings()

    def at(self, url: str, user: str, store: StoreConfig) -> StoreConfig:
        """Return the location of a backup. Without `bucket` a bucket is reached as that of the store, and HDFS by the store's keytab."""
        bucket = store.bucket if self.bucket == BucketSettings() else self.bucket
        return store.elsewhere(url, user).model_copy(update={"bucket": bucket})
