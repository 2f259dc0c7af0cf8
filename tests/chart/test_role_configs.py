"""The chart renders the files that the roles load, and nothing that they would refuse."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from chart.cases import CASES, CLICKS_BY_HTTP, CLICKS_JOINED
from chart.rendering import CHART, EXAMPLES, SMALLEST, Rendered, Renderer, merged, on_top_of_smallest, read
from chart.role_settings import CLASSES, CONFIG, config_text, files
from elastic_ctr.config.feature_rules import input_of
from elastic_ctr.config.helm_yaml import Loader
from elastic_ctr.config.load import settings
from elastic_ctr.config.role_files import Auth, TrainingMember
from elastic_ctr.config.values_file import Values
from elastic_ctr.features.statistics.document import Statistics
from elastic_ctr.operate.cli.given_values import load_values


@pytest.fixture(params=CASES)
def values(request: pytest.FixtureRequest) -> dict[str, Any]:
    return on_top_of_smallest(CASES[request.param])


def test_every_role_loads_its_file(rendered: Rendered) -> None:
    assert files(rendered)


def test_all_roles_are_there_by_default_but_the_intake(render: Renderer) -> None:
    assert files(render()).keys() == CLASSES.keys() - {"intake"}
    assert files(render(**CLICKS_BY_HTTP)).keys() == CLASSES.keys()


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda file: file.stem)
def test_one_machine_takes_every_example_of_a_cluster(example: Path, tmp_path: Path) -> None:
    below = tmp_path / "data.yaml"
    below.write_text(yaml.safe_dump({} if "data" in read(example) else SMALLEST))

    found = load_values([below, example], None)
    assert found.data.slots or found.features


def test_the_program_loads_the_charts_defaults_below_a_values_file() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    given = on_top_of_smallest({})

    loaded = settings(Values, _without_nulls(merged(defaults, given)), "values.yaml")

    assert loaded == settings(Values, given, "values.yaml")


def _without_nulls(tree: Any) -> Any:
    """As Helm does; what is null is the program's to say."""
    if isinstance(tree, dict):
        return {key: _without_nulls(each) for key, each in tree.items() if each is not None}
    return tree


def test_cluster_and_laptop_give_a_role_the_same_settings(values: dict[str, Any], render: Renderer) -> None:
    """One lane: what a values file says of a role's own section arrives there as it does on one machine."""
    local = settings(Values, values, "values.yaml")
    found = files(render(below=values))

    for file in found.values():
        for name in ("model", "features"):
            assert getattr(file, name, getattr(local, name)) == getattr(local, name)
        if (data := getattr(file, "data", None)) is not None:
            # Both put in where the release's own intake is.
            own = {"source": local.data.source} if local.intake.enabled else {}
            assert data.model_copy(update=own) == local.data
        for name, block in (
            ("master", local.master.config),
            ("trainer", local.trainer.config),
            ("pserver", local.pserver.config),
            ("cube_transfer", local.cube_transfer.config),
            ("intake", local.intake.config),
        ):
            given = getattr(file, name, block).model_dump(include={*type(block).model_fields})
            assert given == block.model_dump()
        if (cube := getattr(file, "cube", None)) is not None:
            assert cube.model_copy(update={"workers": 1}) == local.cube.config.of_pod.model_copy(update={"workers": 1})
        if (serving := getattr(file, "serving", None)) is not None:
            of_values = local.serving.config.model_dump(exclude={"workers"})
            assert serving.model_dump(include={*of_values}) == of_values


ROWS = read(CHART / "examples" / "rows.yaml")


def test_the_members_of_a_training_have_the_same_input_in_a_cluster_as_on_a_laptop(render: Renderer) -> None:
    local = settings(Values, ROWS, "values.yaml")
    found = files(render(below=ROWS))

    inputs = {role: file.input for role, file in found.items() if isinstance(file, TrainingMember)}
    assert inputs.keys() == {"master", "trainer", "pserver"}
    assert set(inputs.values()) == {input_of(local.data, local.features)}
    assert inputs["trainer"].averaged == ("tags",)
    assert inputs["trainer"].numbers == ("price",)


def test_features_are_in_the_role_files_of_a_training_alone_and_only_where_there_are_any(render: Renderer) -> None:
    of_rows = [name for name, text in render(below=ROWS).configs() if "\nfeatures:" in text]
    of_clicks = [name for name, text in render().configs() if "\nfeatures:" in text]

    assert len(of_rows) == 3
    assert {name.rpartition("/")[2].partition(".")[0] for name in of_rows} == {"master", "pserver", "trainer"}
    assert of_clicks == []


def test_an_intake_that_joins_has_the_features_in_its_role_file(render: Renderer) -> None:
    stream = {"lateClicks": True, "join": {"key": "id"}}
    data = {
        **CLICKS_BY_HTTP["data"],
        "slots": None,
        "format": "jsonl",
        "label": "click",
        "shows": "n",
        "stream": stream,
    }
    case = {**CLICKS_BY_HTTP, "data": data, "features": {"user": {"type": "categorical"}}}

    found: dict[str, Any] = files(render(below=case))

    assert found["intake"].features == settings(Values, case, "values.yaml").features


def test_statistics_are_in_the_role_file_of_the_master_alone_and_unchanged(render: Renderer) -> None:
    text = Statistics(texts={}, numbers={}).to_json()
    values = merged(ROWS, {"statistics": text})

    found: dict[str, Any] = files(render(below=values))

    assert found["master"].statistics == settings(Values, values, "values.yaml").statistics == text
    assert [name for name, text in render(below=values).configs() if "statistics:" in text] == [
        "ctr-master/master.config.yaml"
    ]


# By the one reader or another of YAML a truth value, nothing, a number, a time, a day, a merge.
STRANGE = ["no", "y", "null", "~", "1e3", "0x1f", "007", "1_000", "2020-04-01", "=", "<<", ".", "-", "'", '"']


def test_names_and_values_of_features_arrive_as_they_are(render: Renderer) -> None:
    values = merged(
        ROWS,
        {
            "data": {"columns": ["click", "ä b", "12:30", *STRANGE]},
            "features": {
                **dict.fromkeys(ROWS["features"]),
                **{
                    name: {"type": "categorical", "vocabulary": ["12:30", " a ", "ä", *STRANGE]}
                    for name in STRANGE
                    if name != "<<"
                },
                "words": {"type": "categorical", "column": "ä b", "vocabulary": "on\n12:30\n 7\r\n"},
                "numbers": {
                    "type": "categorical",
                    "column": "12:30",
                    "vocabulary": ["1000000", "02134", "1e3", "y", "10:30", "-1"],
                },
                "prices": {"type": "bucketized", "column": "no", "boundaries": [-1e-9, 0.1, 1_000_000, 1e22]},
            },
        },
    )
    given = {**values, "features": {name: each for name, each in values["features"].items() if each}}
    local = settings(Values, given, "values.yaml")

    assert files(render(below=given))["trainer"].model_dump()["features"] == local.model_dump()["features"]
    assert local.features is not None
    assert local.features.model_dump()["words"]["vocabulary"] == ("on", "12:30", " 7")
    assert local.features.model_dump()["numbers"]["vocabulary"] == ("1000000", "02134", "1e3", "y", "10:30", "-1")


@pytest.mark.parametrize(("all_of_it", "grace"), [(600, 590), (5, 0)])
def test_the_drain_of_cube_ends_before_its_pod_is_killed(all_of_it: int, grace: int, render: Renderer) -> None:
    rendered = render(cube={"terminationGracePeriodSeconds": all_of_it})

    assert files(rendered)["cube-server"].model_dump()["grace_seconds"] == grace


@pytest.mark.parametrize(("sleep", "all_of_it", "grace"), [(15, 60, 35), (15, 30, 5), (15, 20, 0), (0, 0, 0)])
def test_the_grace_seconds_of_serving_end_before_its_pod_is_killed(
    sleep: int, all_of_it: int, grace: int, render: Renderer
) -> None:
    rendered = render(serving={"preStopSeconds": sleep, "terminationGracePeriodSeconds": all_of_it})

    assert files(rendered)["serving"].model_dump()["grace_seconds"] == grace


def test_every_role_listens_for_others_and_knows_the_tokens_of_its_rights(rendered: Rendered) -> None:
    for role, file in files(rendered).items():
        assert file.host == "::", role
        assert file.auth == Auth.of("/etc/elastic-ctr/auth", file.RIGHTS), role


def test_a_pod_has_the_tokens_of_its_roles_and_no_others(rendered: Rendered) -> None:
    found: dict[str, set[str]] = {}
    for pod in rendered.pods:
        items = pod.volumes["auth"]["secret"]["items"] if "auth" in pod.volumes else []
        mounted = {item["path"] for item in items if item["key"] == item["path"]}
        assert len(mounted) == len(items)
        roles = [each.args[0] for each in pod.containers if each.args and each.args[0] in CLASSES]
        wanted = {right.value for role in roles for right in CLASSES[role].RIGHTS}
        component = pod.labels["app.kubernetes.io/component"]
        assert mounted == (wanted or ({"internal"} if component == "file-server" else set())), component
        found[component] = mounted
        for each in pod.containers:
            assert all(mount["readOnly"] for path, mount in each.mounts.items() if path == "/etc/elastic-ctr/auth")
    assert {component for component, rights in found.items() if "operate" in rights} <= {"master", "cube-transfer"}
    assert {component for component, rights in found.items() if "clicks" in rights} <= {"intake"}


def test_every_role_knows_its_file_and_its_pod(rendered: Rendered) -> None:
    for pod in rendered.pods:
        for each in pod.containers:
            if each.args and each.args[0] in CLASSES:
                assert each.env["ELASTIC_CTR_CONFIG"] == CONFIG
                assert each.env["POD_NAME"]["fieldRef"]["fieldPath"] == "metadata.name"
                assert each.env["ELASTIC_CTR_LOG_FORMAT"] in ("json", "text")


def test_addresses_lead_to_services_of_this_release_and_their_ports(render: Renderer) -> None:
    rendered = render(
        master={"config": {"port": 9700}},
        cubeTransfer={"config": {"port": 9300}},
        training={"scheduler": "none"},
    )
    found: dict[str, Any] = files(rendered)
    ports = {(each.name, port["port"]) for each in rendered.all("Service") for port in each.spec["ports"]}

    assert found["trainer"].master_address == found["pserver"].master_address == "ctr-master:9700"
    assert found["serving"].transfer_address == found["cube-server"].transfer_address == "ctr-cube-transfer:9300"
    assert {("ctr-master", 9700), ("ctr-cube-transfer", 9300)} <= ports


def test_readers_of_the_stream_have_the_address_of_the_intake_of_the_release(render: Renderer) -> None:
    case = merged(CLICKS_BY_HTTP, {"intake": {"config": {"port": 9310}}})
    rendered = render(**case)
    found: dict[str, Any] = files(rendered)

    readers = [file for name, file in found.items() if hasattr(file, "data") and name != "intake"]
    assert {file.data.source.url for file in readers} == {"intake://ctr-intake:9310"}
    # The master may tell it what a recovery needs: it is its own.
    assert found["master"].intake_address == "ctr-intake:9310"
    assert [port["port"] for port in rendered.one("Service", component="intake").spec["ports"]] == [9310]
    # One of another release is left as it is.
    elsewhere: dict[str, Any] = {"data": {**case["data"], "source": {"url": "intake://clicks.shop:8310"}}}
    other: dict[str, Any] = files(render(**elsewhere))
    assert other["trainer"].data.source.url == "intake://clicks.shop:8310"
    assert other["master"].intake_address is None


def test_a_topic_whose_clicks_are_joined_is_the_intakes_and_training_reads_the_intake(render: Renderer) -> None:
    found: dict[str, Any] = files(render(below=CLICKS_JOINED))
    wanted = settings(Values, CLICKS_JOINED, "values.yaml").data

    assert found["intake"].data == wanted
    for role in ("master", "trainer"):
        assert found[role].data == wanted.of_intake("ctr-intake:8310", "/etc/elastic-ctr/auth/internal"), role


def test_pods_are_named_in_full_below_a_headless_service(render: Renderer) -> None:
    rendered = render(clusterDomain="example.org")
    found: dict[str, Any] = files(rendered)

    assert found["pserver"].pod_domain == "ctr-pserver.ads.svc.example.org"
    assert found["cube-server"].pod_domain == found["cube-transfer"].cube_domain == "ctr-cube.ads.svc.example.org"
    for name in ("ctr-pserver", "ctr-cube"):
        service = rendered.one("Service", name=name)
        assert service.spec["clusterIP"] == "None"
        assert service.spec["publishNotReadyAddresses"] is True


def test_a_master_is_found_as_soon_as_it_listens(render: Renderer) -> None:
    assert render().one("Service", name="ctr-master").spec["publishNotReadyAddresses"] is True


def test_transfer_has_the_counts_of_shards_and_replicas_and_the_master_that_of_pservers(render: Renderer) -> None:
    found: dict[str, Any] = files(
        render(cube={"replicasPerShard": 3, "config": {"shards": 5}}, pserver={"replicas": 4})
    )

    assert (found["cube-transfer"].shards, found["cube-transfer"].replicas_per_shard) == (5, 3)
    assert found["master"].pservers == found["pserver"].pservers == 4


@pytest.mark.parametrize(
    ("canary", "minutes"),
    [
        ({}, 0),
        ({"minutes": 3}, 0),
        ({"share": 0.1}, 10),
        ({"share": 0.1, "minutes": 2.5}, 2.5),
        ({"share": 0.1, "minutes": None}, 10),
    ],
)
def test_transfer_has_the_minutes_of_a_canary_and_serving_has_its_share(
    render: Renderer, canary: dict[str, Any], minutes: float
) -> None:
    found: dict[str, Any] = files(render(serving={"config": {"canary": canary}}))

    assert found["cube-transfer"].canary_minutes == minutes
    assert found["serving"].serving.canary.share == canary.get("share", 0)


def test_the_store_is_the_file_server_of_the_release_unless_a_url_is_given(render: Renderer) -> None:
    own: dict[str, Any] = files(render(fileServer={"service": {"port": 9090}}))
    other: dict[str, Any] = files(
        render(store={"config": {"url": "hdfs://namenode:9000"}}, fileServer={"enabled": False})
    )

    assert {file.store.url for file in own.values() if hasattr(file, "store")} == {"http://ctr-file-server:9090"}
    assert {file.store.url for file in other.values() if hasattr(file, "store")} == {"hdfs://namenode:9000"}


def test_the_master_and_the_trainers_have_the_address_of_tracking_where_it_is_on(render: Renderer) -> None:
    rendered = render(tracking={"enabled": True, "service": {"port": 5500}})
    found: dict[str, Any] = files(rendered)
    without: dict[str, Any] = files(render())

    assert {found[role].tracking.url for role in ("master", "trainer")} == {"http://ctr-tracking:5500"}
    assert [port["port"] for port in rendered.one("Service", component="tracking").spec["ports"]] == [5500]
    assert without["master"].tracking is None
    assert without["trainer"].tracking is None


def test_the_members_of_a_training_have_its_name_and_whether_they_exit_when_it_is_done(render: Renderer) -> None:
    volcano: dict[str, Any] = files(render())
    none: dict[str, Any] = files(render(training={"scheduler": "none"}))

    assert render().one("Job").name == volcano["master"].training == volcano["trainer"].training
    assert volcano["pserver"].training == volcano["master"].training
    assert (volcano["trainer"].exit_when_done, volcano["pserver"].exit_when_done) == (True, True)
    assert (none["trainer"].exit_when_done, none["pserver"].exit_when_done) == (False, False)


@pytest.mark.parametrize(
    ("cpu", "workers"), [("100m", 1), (1, 1), ("1", 1), (1.5, 2), ("2500m", 3), (4, 4), ("0.5", 1), ("2001m", 3)]
)
def test_workers_are_the_cores_rounded_up(render: Renderer, cpu: object, workers: int) -> None:
    found: dict[str, Any] = files(render(cube={"resources": {"cpu": cpu}}, serving={"resources": {"cpu": cpu}}))

    assert found["cube-server"].cube.workers == found["serving"].serving.workers == workers


def test_workers_that_are_given_stay(render: Renderer) -> None:
    given = {"config": {"workers": 7}, "resources": {"cpu": 2}}
    found: dict[str, Any] = files(render(cube=given, serving=given))

    assert found["cube-server"].cube.workers == found["serving"].serving.workers == 7


@pytest.mark.parametrize("number", [1_000_000, 1_000_001, 2**31, 2**53 - 1])
def test_large_integers_arrive_whole(render: Renderer, number: int) -> None:
    rendered = render(model={"sparseDim": number}, serving={"config": {"maxBodyBytes": number}})
    found: dict[str, Any] = files(rendered)

    assert {file.model.sparse_dim for file in found.values() if hasattr(file, "model")} == {number}
    assert found["serving"].serving.max_body_bytes == number
    texts = [text for _, text in rendered.configs()]
    assert any(f"sparseDim: {number}\n" in text for text in texts)


@pytest.mark.parametrize("number", [1e-8, 1e-6, 0.1, 12345.678])
def test_small_numbers_arrive_as_numbers(render: Renderer, number: float) -> None:
    found: dict[str, Any] = files(render(model={"table": {"deltaThreshold": number}}))

    assert found["master"].model.table.delta_threshold == number


@pytest.mark.parametrize("slots", [["7", "b"], "7\nb\n"], ids=str)
def test_slots_arrive_as_they_are(render: Renderer, slots: object) -> None:
    found: dict[str, Any] = files(render(data={"slots": slots}))

    assert found["trainer"].data.slots == ("7", "b")


def test_a_role_file_has_no_null(render: Renderer) -> None:
    for where, text in render().configs():
        assert "null" not in text, where


def test_a_role_restarts_when_its_file_changes_and_only_then(render: Renderer) -> None:
    def checksum(component: str, **values: Any) -> str:
        return str(render(**values).pod_of(component).metadata["annotations"]["checksum/config"])

    for component, key in (("master", "master"), ("serving", "serving"), ("cube-transfer", "cubeTransfer")):
        other = {key: {"config": {"port": 9999}}}
        assert checksum(component) != checksum(component, **other)
        assert checksum(component) == checksum(component, tracking={"enabled": True}) or component == "master"
    assert checksum("serving") == checksum("serving", master={"config": {"samples": 5}})


def test_state_and_scratch_are_volumes(rendered: Rendered) -> None:
    for pod in rendered.pods:
        for each in pod.containers:
            if each.args and each.args[0] in CLASSES:
                text = config_text(rendered, pod, each)
                given = yaml.load(text, Loader=Loader)
                sections = {
                    "master": ["master"], "trainer": ["trainer"], "pserver": ["pserver"], "cube-server": ["cube"],
                    "cube-builder": ["cubeTransfer"], "cube-transfer": ["cubeTransfer"],
                    "serving": ["serving"], "scoring": ["scoring"], "intake": ["intake"],
                }[each.args[0]]  # fmt: skip
                file: Any = settings(CLASSES[each.args[0]], given, each.name)
                for section in sections:
                    own = getattr(file, {"cubeTransfer": "cube_transfer"}.get(section, section))
                    for name in ("state_dir", "scratch_dir", "cache_dir", "dir"):
                        if (folder := getattr(own, name, None)) and needs(each.args[0], name):
                            assert any(folder == path or folder.startswith(f"{path}/") for path in each.mounts), (
                                f"{pod.owner}/{each.name}: {folder}"
                            )


def needs(role: str, folder: str) -> bool:
    """Builder and transfer share a section, but not their folders."""
    return (role, folder) not in {("cube-builder", "state_dir"), ("cube-transfer", "scratch_dir")}
