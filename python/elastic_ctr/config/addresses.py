"""Addresses in settings. The module imports little, because every role reads the settings of the data."""

import re
from collections.abc import Callable
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

DELTA = "delta+"
"""Before the address of the folder of a Delta table."""
OWN_INTAKE = "intake://"
"""The release's own intake: chart and local runner put its address in."""


def is_stream(url: str) -> bool:
    """True if the address is of a stream, not of folders of hours."""
    parts = urlsplit(url)
    return parts.scheme in {"kafka", "intake"} or (parts.scheme == "file" and parts.query == "follow")


def is_table(url: str) -> bool:
    """True if the address is of a table of Delta or Iceberg."""
    return url.startswith((DELTA, "iceberg://", "iceberg+rest://"))


def is_bucket(url: str) -> bool:
    """True if the address is of a bucket, or of a Delta table in one."""
    return url.removeprefix(DELTA).startswith(("s3://", "gs://", "az://"))


BUCKET = r"(s3|gs|az)://[A-Za-z0-9][A-Za-z0-9._-]+(/[^?#]*)?$"
# Logs, status and ConfigMaps show addresses, so these have no user, query or fragment.
_STORE = rf"^(file:///|(https?|(s?web)?hdfs)://[^/?#@]+(/[^?#]*)?$|{BUCKET})"
_WEB = r"^https?://[^/?#@\s]+(/[^?#\s]*)?$"


def _address(pattern: str, forms: str, way_out: str) -> Callable[[str], str]:
    def check(url: str) -> str:
        if re.match(pattern, url):
            return url
        if re.search("[@?#]", url):
            raise ValueError(f"the address has credentials or a query in it; leave them out, and {way_out}")
        raise ValueError(f"{url!r} is none of {forms}")

    return check


_store_url = _address(
    _STORE,
    "file:///dir, http://file-server:8080, hdfs://namenode:9000/dir, s3://bucket/dir, gs://bucket/dir, az://container/dir",
    "give HDFS's user by `user`, tokens by the Secret of auth.existingSecret, and a bucket's keys by `bucket`",
)
StoreUrl = Annotated[str, AfterValidator(_store_url), Field(json_schema_extra={"pattern": _STORE})]
_web_url = _address(_WEB, "http://host:port, https://host", "let a proxy add them from a file")
_bucket_url = _address(
    f"^{BUCKET}", "s3://bucket/dir, gs://bucket/dir, az://container/dir", "give its keys by `bucket`"
)
BucketUrl = Annotated[str, AfterValidator(_bucket_url), Field(json_schema_extra={"pattern": f"^{BUCKET}"})]
WebUrl = Annotated[str, AfterValidator(_web_url), Field(json_schema_extra={"pattern": _WEB})]
