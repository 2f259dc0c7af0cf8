"""Hours and versions in a bucket: its credentials in every role, and the way to it."""

from typing import Any

import pytest

from chart.cases import CLICKS_BY_HTTP
from chart.policies import Peer
from chart.rendering import EXAMPLES, Renderer, merged, read
from chart.role_settings import files
from chart.test_edges import HADOOP, READERS, WRITERS, reaching
from elastic_ctr.config.role_files import MasterFile

[EXAMPLE] = [file for file in EXAMPLES if file.stem == "bucket"]
MINIO = Peer(address="10.20.0.7")


def test_every_role_with_a_store_and_no_other_pod_has_the_credentials_as_files(render: Renderer) -> None:
    values = merged(CLICKS_BY_HTTP, {"bucketSecret": {"existingSecret": "ctr-bucket"}})
    rendered = render(**values, scoring={"enabled": True}, tracking={"enabled": True})
    volume = {"name": "bucket", "secret": {"secretName": "ctr-bucket"}}

    assert {pod.component for pod in rendered.pods if volume in pod.volumes.values()} == WRITERS
    for component in WRITERS:
        for container in rendered.pod_of(component).containers:
            assert container.mounts["/etc/elastic-ctr/bucket"]["readOnly"] is True, container


def test_a_bucket_is_reached_by_every_component_that_uses_it_at_the_port_of_its_endpoint(render: Renderer) -> None:
    rendered = render(below=merged(read(EXAMPLE), {"networkPolicy": {"store": {"ports": [443]}}}))

    assert reaching(rendered, MINIO, [443, 9000, 80]) == {name: {443, 9000} for name in WRITERS}
    assert reaching(rendered, HADOOP, [443, 9000]) == {}


def test_only_readers_of_logs_reach_a_bucket_with_them_alone(render: Renderer) -> None:
    rendered = render(data={"source": {"url": "gs://ads/clicks"}})

    assert reaching(rendered, HADOOP, [443]) == {name: {443} for name in READERS}


def test_the_master_alone_has_the_archive_and_reaches_it(render: Renderer) -> None:
    archive = {"url": "s3://ads/archive", "bucket": {"endpoint": "https://minio:9000"}}
    with_it = render(store={"config": {"archive": archive}}, networkPolicy={"store": {"ports": [443]}})
    found, without = files(with_it), files(render())

    [master] = [found[name] for name in found if found[name] != without[name]]
    assert isinstance(master, MasterFile)
    assert master.store.archive is not None
    assert (master.store.archive.url, master.store.archive.bucket.endpoint) == (archive["url"], "https://minio:9000")
    assert reaching(with_it, MINIO, [443, 9000]) == {"master": {443, 9000}}


@pytest.mark.parametrize("setting", ["store.config", "data.source", "store.config.archive"])
def test_files_that_no_pod_has_are_refused(render: Renderer, setting: str) -> None:
    given: dict[str, Any] = {"url": "s3://ads/x", "bucket": {"credentials": "files"}}
    for key in reversed(setting.split(".")):
        given = {key: given}

    assert f"{setting}.bucket.credentials is files, and no pod has them" in render.refusal(**given)
    render(**given, bucketSecret={"existingSecret": "keys"})
