"""A table as the source of clicks: the image that reads its log, and the ways to its files and catalog."""

import pytest

from chart.policies import Peer
from chart.rendering import EXAMPLES, Renderer, merged, read
from chart.test_edges import HADOOP, READERS, reaching

[EXAMPLE] = [file for file in EXAMPLES if file.stem == "table"]
OUTSIDE = Peer(address="10.20.0.7")


def of_table(url: str, **source: object) -> dict[str, object]:
    given = {"data": {"source": {"url": url, **source}}, "networkPolicy": {"store": {"ports": [443]}}}
    return merged(read(EXAMPLE), given)


def test_the_master_of_a_table_needs_the_image_that_reads_its_log(render: Renderer) -> None:
    refused = render.refusal(below=read(EXAMPLE), master={"image": {"repository": "mirror.example/elastic-ctr/cube"}})

    assert "data.source.url delta+s3://lake/clicks is a table" in refused
    assert "set master.image.repository to that of the trainer, elastic-ctr/trainer" in refused
    assert "elastic-ctr/trainer:" in render(below=read(EXAMPLE)).pod_of("master").containers[0].image


@pytest.mark.parametrize(
    ("url", "ports"),
    [
        ("delta+gs://lake/clicks", {443}),
        ("iceberg+rest://catalog.lake.svc:8181/db.clicks", {443, 8181}),
        ("iceberg://lake/db.clicks", {443}),
    ],
)
def test_readers_of_clicks_reach_the_files_and_the_catalog_of_a_table(
    render: Renderer, url: str, ports: set[int]
) -> None:
    rendered = render(below=of_table(url, bucket={}))

    assert reaching(rendered, OUTSIDE, [443, 8181, 9870]) == dict.fromkeys(READERS, ports)


def test_readers_of_clicks_reach_the_hadoop_of_a_table(render: Renderer) -> None:
    rendered = render(below=of_table("delta+hdfs://namenode:9000/clicks", bucket={}))

    assert reaching(rendered, HADOOP, [9870]) == {name: {9870} for name in READERS}


def test_a_table_on_a_machine_needs_its_volume(render: Renderer) -> None:
    assert "is a folder of a machine, and no pod has it" in render.refusal(
        below=of_table("delta+file:///lake", bucket={})
    )
