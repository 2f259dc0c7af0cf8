"""How a store or source is reached: HDFS by `user` and `keytab`, a bucket of S3, Google Cloud Storage or Azure by `bucket`."""

import re
from typing import Literal

from pydantic import Field, model_validator
from typing_extensions import Self

from elastic_ctr.config.addresses import WebUrl, is_bucket
from elastic_ctr.config.section import Section

_PATH = r"^/[^:\s]*$"


class BucketSettings(Section):
    """Secrets are in mounted files or the environment alone: these settings have their places."""

    endpoint: WebUrl | None = Field(
        default=None,
        description="Address of what speaks S3 outside AWS: MinIO, R2, OSS. Absent: the cloud's own.",
    )
    region: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9-]+$",
        description="Region of an s3:// bucket. Absent: AWS_REGION, or us-east-1.",
    )
    virtual_hosted: bool = Field(
        default=False,
        description="Requests name the bucket in front of the endpoint's host, as OSS wants it, not in the path.",
    )
    ca_file: str | None = Field(
        default=None,
        pattern=_PATH,
        description="A mounted PEM file with a CA that is trusted beside those of the image.",
    )
    credentials: Literal["environment", "files", "instance", "none"] = Field(
        default="environment",
        description="environment: variables, which EKS and Azure set for the service account, too. files: `credentialsDir`. instance: the "
        "metadata service, as on GKE. none: a public bucket.",
    )
    credentials_dir: str = Field(
        default="/etc/elastic-ctr/bucket",
        pattern=_PATH,
        description="A folder with a file for each variable, named so: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
        "GOOGLE_SERVICE_ACCOUNT_KEY, AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY. Changed files are read again.",
    )


class Addressed(Section):
    """An address, and how it is reached."""

    url: str
    user: str = Field(
        default="root",
        min_length=1,
        description="User that reads and writes there, which HDFS alone checks. With `keytab` a Kerberos principal, such as ctr@EXAMPLE.ORG.",
    )
    keytab: str | None = Field(
        default=None,
        pattern=r"^/[^:\s]+$",
        description="For HDFS with Kerberos: a mounted file with the key of `user`. Absent: HDFS believes `user`.",
    )
    bucket: BucketSettings = BucketSettings()

    @model_validator(mode="after")
    def _bucket_is_of_buckets(self) -> Self:
        # The files of an Iceberg table may be anywhere.
        may_be = is_bucket(self.url) or self.url.startswith("iceberg")
        if self.bucket != BucketSettings() and not may_be:
            raise ValueError(f"bucket is of s3://, gs:// and az://, and {self.url} is none of them; leave it out")
        return self

    @model_validator(mode="after")
    def _keytab_is_of_hdfs(self) -> Self:
        if self.keytab is not None and not re.match(r"(delta\+)?(s?web)?hdfs://", self.url):
            raise ValueError(f"keytab is of HDFS, and {self.url} is no address of it; leave it out")
        if self.keytab is not None and self.user == "root":
            raise ValueError(
                "keytab goes with user, the principal whose key it has, such as ctr@EXAMPLE.ORG; give both"
            )
        return self

    def moved(self, url: str) -> Self:
        """Return the same at another address, unchecked."""
        return self.model_copy(update={"url": url})
