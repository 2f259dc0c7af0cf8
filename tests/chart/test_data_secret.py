"""The Secret of a Kafka topic, in the pods that read it and in no other."""

from chart.rendering import EXAMPLES, Renderer, read

[EXAMPLE] = [file for file in EXAMPLES if file.stem == "kafka"]


def test_only_master_and_trainers_have_it(render: Renderer) -> None:
    for scheduler in ("volcano", "none"):
        rendered = render(below=read(EXAMPLE), training={"scheduler": scheduler}, tracking={"enabled": True})
        has = {
            pod.component
            for pod in rendered.pods
            if {"name": "source", "secret": {"secretName": "reader-of-clicks"}} in pod.volumes.values()
        }

        assert has == {"master", "trainer"}
        for component in has:
            [container] = rendered.pod_of(component).containers
            assert container.mounts["/etc/elastic-ctr/source"] == {
                "name": "source", "mountPath": "/etc/elastic-ctr/source", "readOnly": True,
            }  # fmt: skip


def test_no_file_of_it_is_in_another_folder(render: Renderer) -> None:
    rendered = render(below=read(EXAMPLE))
    kafka = read(EXAMPLE)["data"]["source"]["kafka"]

    for component in ("master", "trainer"):
        [container] = rendered.pod_of(component).containers
        files = [value for key, value in kafka.items() if key.endswith("File")]
        assert files
        assert all(file.rpartition("/")[0] in container.mounts for file in files)
