"""Settings of the store of model versions, and of the backup that a new release begins with."""

from pydantic import Field, model_validator
from typing_extensions import Self

from elastic_ctr.config.addresses import BucketUrl, StoreUrl, is_bucket
from elastic_ctr.config.buckets import Addressed, BucketSettings
from elastic_ctr.config.data import Data
from elastic_ctr.config.section import Section


class Archive(Section):
    """A bucket with copies of bases, which outlives the volume of the store."""

    url: BucketUrl = Field(
        description="s3://bucket/dir, gs://bucket/dir or az://container/dir, of this release alone, and outside the store."
    )
    bucket: BucketSettings = BucketSettings()


class StoreConfig(Addressed):
    """Where model versions live."""

    url: StoreUrl = Field(
        default="file:///var/lib/elastic-ctr/store",
        description="One place for all roles: file:///dir, http://file-server:8080, hdfs://namenode:9000/dir (addresses of HDFS as in "
        "data.source.url), or a bucket: s3://bucket/dir, gs://bucket/dir, az://container/dir.",
    )

    archive: Archive | None = Field(
        default=None,
        description="A bucket for copies of bases and their checkpoints: {url: s3://bucket/dir, bucket: {region: eu-west-1}}.",
    )

    @model_validator(mode="after")
    def _archive_is_elsewhere(self) -> Self:
        if self.archive is None or self.archive.bucket.endpoint != self.bucket.endpoint:
            return self
        one, other = f"{self.archive.url.rstrip('/')}/", f"{self.url.rstrip('/')}/"
        if one.startswith(other) or other.startswith(one):
            raise ValueError(
                f"archive.url {self.archive.url} and url {self.url} are one place, so both would be lost together; give the archive another "
                "bucket or folder"
            )
        return self

    def moved(self, url: str) -> Self:
        """Return the store at another address, unchecked: the archive is reached by its own settings, any other as this one."""
        archive = self.archive
        bucket = archive.bucket if archive is not None and url.rstrip("/") == archive.url.rstrip("/") else self.bucket
        return self.model_copy(update={"url": url, "bucket": bucket})

    def elsewhere(self, url: str, user: str) -> Self:
        """Return another store, as `moved` does. A keytab has the key of its own user, so that one is kept with it."""
        return self.moved(url).model_copy(update={"user": user if self.keytab is None else self.user})


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
