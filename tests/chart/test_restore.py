"""`restore` in the chart: the master alone has it, so that its removal restarts no other pod, and may reach the backup."""

from typing import Any

from chart.policies import Peer, lets_out
from chart.rendering import Renderer
from chart.role_settings import files
from elastic_ctr.config.role_files import MasterFile

ELSEWHERE = Peer("elsewhere", {"app": "file-server"})


def test_the_master_alone_restores(render: Renderer) -> None:
    with_it = files(render(restore={"url": "hdfs://archive:9000/ctr", "user": "ann"}))
    without = files(render())

    [master] = [with_it[name] for name in with_it if with_it[name] != without[name]]
    assert isinstance(master, MasterFile)
    assert (master.restore.url, master.restore.user) == ("hdfs://archive:9000/ctr", "ann")


def test_the_master_may_reach_the_backup(render: Renderer) -> None:
    def reaches(url: str | None) -> bool:
        rendered = render(restore={"url": url})
        master = Peer("ads", rendered.pod_of("master").labels)
        return lets_out(rendered.all("NetworkPolicy"), "ads", master, ELSEWHERE, 8123)

    assert reaches("http://archive:8123")
    assert not reaches(None)


def test_the_master_may_reach_the_bucket_of_backups_at_the_port_of_its_endpoint(render: Renderer) -> None:
    def reaches(**values: Any) -> bool:
        rendered = render(**values)
        master = Peer("ads", rendered.pod_of("master").labels)
        return lets_out(rendered.all("NetworkPolicy"), "ads", master, ELSEWHERE, 9000)

    minio = {"endpoint": "https://minio:9000"}
    # Backups begin before the first restore.
    assert reaches(restore={"bucket": minio})
    assert reaches(restore={"url": "s3://backups/ctr"}, store={"config": {"bucket": minio}})
    assert not reaches(restore={"url": "s3://backups/ctr"})


def test_a_bucket_of_backups_is_reached_by_settings_of_its_own_also_before_a_restore(render: Renderer) -> None:
    found = files(render(restore={"bucket": {"endpoint": "https://minio:9000"}}))

    [master] = [each for each in found.values() if isinstance(each, MasterFile)]
    place = master.restore.at("s3://backups/ctr", "root", master.store)
    assert (place.url, place.bucket.endpoint) == ("s3://backups/ctr", "https://minio:9000")
