"""Helm itself: both of its versions, lint, a package, the chart below another one, and the notes."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from chart.rendering import CHART, EXAMPLES, SMALLEST, TOKENS, Renderer, on_top_of_smallest, read
from needs import needs

FILES = [CHART / "values.yaml", *EXAMPLES]


def binary(major: int) -> str:
    """Helm's program of this version: $HELM3 or $HELM, else on PATH; skips the test where there is none."""
    named = [os.environ.get(f"HELM{major}"), os.environ.get("HELM"), f"helm{major}", "helm"]
    for name in filter(None, named):
        if path := shutil.which(name):
            version = subprocess.run(
                [path, "version", "--template", "{{.Version}}"], capture_output=True, text=True, check=False
            )
            if version.stdout.startswith(f"v{major}."):
                return path
    pytest.skip(needs(f"Helm {major}", "tools/get helm"))


def template(helm: str, values: Path, *more: str) -> str:
    """The objects' texts, without blank lines between them."""
    found = subprocess.run(
        [
            helm,
            "template",
            "ctr",
            str(CHART),
            "--namespace",
            "ads",
            "--kube-version",
            "1.34.3",
            "-f",
            str(values),
            "--set",
            "auth.existingSecret=ctr-auth",
            *more,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return "\n---\n".join(part.strip() for part in f"\n{found.stdout}".split("\n---\n"))


@pytest.mark.parametrize("example", [None, *EXAMPLES], ids=lambda file: file.stem if file else "default")
def test_both_helms_render_the_same_bytes(tmp_path: Path, example: Path | None) -> None:
    helm3, helm4 = binary(3), binary(4)
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(on_top_of_smallest(read(example) if example else {})))

    assert template(helm3, values) == template(helm4, values)


@pytest.mark.parametrize("major", [3, 4])
def test_the_program_renders_what_the_library_renders(tmp_path: Path, render: Renderer, major: int) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(SMALLEST))
    documents = [each for each in yaml.safe_load_all(template(binary(major), values)) if each]
    own = [each.raw for each in render().objects]

    def sorted_by_name(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(objects, key=lambda each: (each["kind"], each["metadata"]["name"]))

    assert sorted_by_name(documents) == sorted_by_name(own)


@pytest.mark.parametrize("major", [3, 4])
def test_slots_come_from_a_file_of_one_a_line(tmp_path: Path, major: int) -> None:
    values, slots = tmp_path / "values.yaml", tmp_path / "slot.conf"
    values.write_text(yaml.safe_dump(SMALLEST))
    slots.write_text("7\n8\n9\n")

    assert "7\n" in template(binary(major), values, "--set-file", f"data.slots={slots}")


@pytest.mark.parametrize("major", [3, 4])
def test_a_vocabulary_comes_from_a_file_of_one_a_line(tmp_path: Path, major: int) -> None:
    values, words = CHART / "examples" / "rows.yaml", tmp_path / "devices.txt"
    words.write_text("phone\ntv\n")

    rendered = template(binary(major), values, "--set-file", f"features.device.vocabulary={words}")

    [config] = [
        text
        for each in yaml.safe_load_all(rendered)
        if each and each["kind"] == "ConfigMap"
        for name, text in each["data"].items()
        if name.startswith("master.")
    ]
    assert yaml.safe_load(config)["features"]["device"]["vocabulary"] == "phone\ntv\n"


@pytest.mark.parametrize("major", [3, 4])
def test_both_helms_refuse_alike(tmp_path: Path, major: int) -> None:
    helm = binary(major)
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(SMALLEST))
    words = {
        "cube.config.shrads=3": "at '/cube/config': additional properties 'shrads' not allowed",
        "cube.podLabels.elastic-ctr/shard=x": "at '/cube/podLabels/elastic-ctr~1shard': false schema",
        "serving.preStopSeconds=60": "serving.preStopSeconds 60 leaves nothing",
        "serving.resources.limits.memory=512Mi": "serving.resources requests 1Gi of memory, above its limit of 512Mi",
        "master.config.stateDir=/tmp": "at '/master/config': additional properties 'stateDir' not allowed",
    }

    for given, expected in words.items():
        found = subprocess.run(
            [helm, "template", "ctr", str(CHART), "--kube-version", "1.34.3", "-f", str(values), "--set", given],
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode != 0
        assert expected in found.stderr


@pytest.mark.parametrize("major", [3, 4])
def test_helm_template_needs_a_secret_by_name(tmp_path: Path, major: int) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(yaml.safe_dump(SMALLEST))

    command = [binary(major), "template", "ctr", str(CHART), "-f", str(values)]
    as_argo_cd = ["--kube-version", "1.34.3", "--api-versions", "v1/Pod,batch.volcano.sh/v1alpha1"]
    found = subprocess.run([*command, *as_argo_cd], capture_output=True, text=True, check=False)

    assert found.returncode != 0
    assert "auth.existingSecret is empty, and Helm renders without looking into a cluster" in found.stderr


@pytest.mark.parametrize("example", [None, *EXAMPLES], ids=lambda file: file.stem if file else "default")
def test_lint_has_nothing_to_say(example: Path | None) -> None:
    values = on_top_of_smallest(read(example) if example else {})

    report = helm_python.lint(CHART, values, strict=True, quiet=True, namespace="ads", kube_version="v1.34.0")

    assert report["errors"] == []
    assert [each for each in report["messages"] if each["severity"] >= 2] == []


def test_a_package_renders_as_the_folder_does(tmp_path: Path, render: Renderer) -> None:
    packed = Renderer(Path(helm_python.package(CHART, destination=tmp_path)))
    try:
        own = [each.raw for each in render().objects]
        assert [each.raw for each in packed().objects] == own
    finally:
        packed.close()


def test_a_package_holds_what_a_user_needs_and_nothing_else(tmp_path: Path) -> None:
    archive = Path(helm_python.package(CHART, destination=tmp_path))
    shutil.unpack_archive(archive, tmp_path, filter="data")
    found = {
        str(each.relative_to(tmp_path / "elastic-ctr"))
        for each in (tmp_path / "elastic-ctr").rglob("*")
        if each.is_file()
    }

    assert {"Chart.yaml", "values.yaml", "values.schema.json", "README.md", "files/nginx.conf"} <= found
    assert {each for each in found if each.startswith(".") or each.endswith((".swp", ".bak"))} <= {".helmignore"}
    # A release, the whole chart in it, is a Secret of at most a megabyte.
    assert archive.stat().st_size < 300_000


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    folder = tmp_path / "shop"
    (folder / "charts").mkdir(parents=True)
    (folder / "templates").mkdir()
    about = {
        "apiVersion": "v2",
        "name": "shop",
        "version": "1.0.0",
        "dependencies": [{"name": "elastic-ctr", "version": ">=0.0.0-0", "condition": "elastic-ctr.enabled"}],
    }
    (folder / "Chart.yaml").write_text(yaml.safe_dump(about))
    shutil.copytree(CHART, folder / "charts" / "elastic-ctr")
    return folder


def below_another_chart(parent: Path, **values: Any) -> dict[str, str]:
    given = {
        "global": {"team": "shop", "imageRegistry": "mirror.example.org"},
        "elastic-ctr": {**SMALLEST, **TOKENS, **values},
    }
    with helm_python.Chart.load(parent) as chart:
        return chart.render(given, name="shop", namespace="ads")


def test_the_chart_renders_below_another_one(parent: Path) -> None:
    texts = below_another_chart(parent, enabled=True)
    [text] = [text for name, text in texts.items() if name.endswith("templates/serving/deployment.yaml")]

    deployment = yaml.safe_load(text)
    assert deployment["metadata"]["name"] == "shop-serving"
    assert deployment["spec"]["template"]["spec"]["containers"][0]["image"].startswith("mirror.example.org/")


def test_below_another_chart_what_is_wrong_is_refused_still(parent: Path) -> None:
    with pytest.raises(helm_python.HelmError, match="additional properties 'shrads' not allowed"):
        below_another_chart(parent, cube={"config": {"shrads": 3}})


@pytest.mark.parametrize("example", [None, *EXAMPLES], ids=lambda file: file.stem if file else "default")
def test_the_notes_tell_the_next_commands(render: Renderer, example: Path | None) -> None:
    notes = render(below=on_top_of_smallest(read(example) if example else {})).notes

    commands = [
        line.strip()
        for line in notes.splitlines()
        if line.strip().startswith(("kubectl ", "helm ", "elastic-ctr ", "curl "))
    ]
    assert len(commands) >= 3, notes
    assert "<no value>" not in notes
    assert "%!" not in notes
    assert all(
        "--namespace ads" in line or "-n ads" in line for line in commands if line.startswith(("kubectl ", "helm "))
    )


def test_the_notes_of_a_stream_say_its_topic_and_where_it_begins(render: Renderer) -> None:
    data = {"source": {"url": "kafka://broker:9092/clicks"}, "start": "latest", "end": None, "slots": ["0"]}

    assert "from kafka://broker:9092/clicks, latest on\n" in render(data=data).notes


def test_the_notes_say_what_a_new_number_of_pservers_costs(render: Renderer) -> None:
    assert "checkpoint" in render(upgrade=True, pserver={"replicas": 3}).notes
