from pathlib import Path
from typing import Any

import pytest

from elastic_ctr.config.data import DataSource
from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.config.role_files import IntakeFile, MasterFile, PserverFile, ServingFile
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.local.plan import HOST, Role, RunPlaces, ports, roles

DATA = {"source": {"url": "file:///logs"}, "start": "20200401/00", "slots": ["a"]}


def places(**blocks: Any) -> RunPlaces:
    return RunPlaces(Path("/run/local"), Values.model_validate({"data": DATA, **blocks}))


CLICKS_BY_HTTP: dict[str, Any] = {
    "data": {**DATA, "source": {"url": "intake://"}, "start": "earliest"},
    "intake": {"enabled": True},
}


def names(one: RunPlaces) -> list[str]:
    return [role.name for role in roles(one)]


def numbers(found: object, key: str = "") -> list[int]:
    """Every port in a role's own block."""
    if isinstance(found, dict):
        return [port for name, value in found.items() for port in numbers(value, name)]
    return [found] if isinstance(found, int) and key.lower().endswith("port") else []


def own_ports(role: Role) -> set[int]:
    block = {
        "master": "master",
        "cube-transfer": "cube_transfer",
        "intake": "intake",
        "pserver": "pserver",
        "cube-server": "cube",
        "serving": "serving",
    }.get(role.command)
    # Pservers of one machine are reached at sockets.
    unused = {"port"} if block == "pserver" else set()
    return set(numbers(getattr(role.file, block).model_dump(by_alias=True, exclude=unused))) if block else set()


def test_the_defaults_are_one_process_for_each_container_of_a_cluster() -> None:
    assert names(places()) == [
        "ctr-master-0",
        "ctr-pserver-0",
        "ctr-pserver-1",
        "ctr-trainer-0",
        "ctr-trainer-1",
        "ctr-cube-transfer-0",
        "ctr-cube-builder-0",
        "ctr-cube-s0-0",
        "ctr-cube-s1-0",
        "ctr-serving-0",
    ]


def test_an_intake_runs_where_it_is_on_and_who_trains_is_told_its_address() -> None:
    one = places(**CLICKS_BY_HTTP)

    assert [name for name in names(one) if "intake" in name] == ["ctr-intake-0"]
    given = {role.command: role.file.data.source.url for role in roles(one) if hasattr(role.file, "data")}
    trains = dict.fromkeys(("master", "trainer", "pserver"), "intake://127.0.0.1:8310")
    assert given == {**trains, "intake": "intake://"}
    [intake] = [role.file for role in roles(one) if isinstance(role.file, IntakeFile)]
    assert intake.intake.dir == "/run/local/state/intake"
    [master] = [role.file for role in roles(one) if isinstance(role.file, MasterFile)]
    assert master.intake_address == "127.0.0.1:8310"
    data = {**CLICKS_BY_HTTP["data"], "source": {"url": "intake://clicks.shop:8310"}}
    [master] = [role.file for role in roles(places(data=data)) if isinstance(role.file, MasterFile)]
    assert master.intake_address is None


def test_a_topic_whose_clicks_are_joined_is_the_intakes_and_training_reads_the_intake() -> None:
    data = {
        "source": {"url": "kafka://broker:9094/clicks", "kafka": {"tls": True}},
        "start": "earliest", "format": "jsonl", "label": "click", "shows": "n",
        "stream": {"lateClicks": True, "join": {"key": "id"}},
    }  # fmt: skip
    one = places(data=data, features={"user": {"type": "categorical"}}, intake={"enabled": True})
    given = {role.command: role.file.data.source for role in roles(one) if hasattr(role.file, "data")}

    assert given["intake"] == one.values.data.source
    for role in ("master", "trainer", "pserver"):
        assert given[role] == DataSource(url="intake://127.0.0.1:8310", token_file="/run/local/tokens/internal"), role


def test_an_intake_moves_with_the_ports_of_a_run_and_takes_no_others() -> None:
    assert places(**CLICKS_BY_HTTP, local={"port_base": 9300}).intake == f"{HOST}:9310"
    with pytest.raises(ConfigRefused, match=r"and intake\.config\.port both come to port 8400"):
        places(**{**CLICKS_BY_HTTP, "intake": {"enabled": True, "config": {"port": 8400}}})
    # One that is off has none.
    places(intake={"config": {"port": 8400}})


def test_shards_and_replicas_are_pods_named_after_them() -> None:
    one = places(cube={"replicasPerShard": 2, "config": {"shards": 3}})

    pods = {role.name for role in roles(one) if role.command.startswith("cube-") and "-s" in role.name}

    assert pods == {f"ctr-cube-s{shard}-{replica}" for shard in range(3) for replica in range(2)}


def test_no_two_processes_share_a_port_and_all_of_them_are_foreseen() -> None:
    one = places(
        cube={"replicasPerShard": 2, "config": {"shards": 4}},
        serving={"replicas": 3},
        pserver={"replicas": 4},
        trainer={"replicas": 3},
        **CLICKS_BY_HTTP,
    )

    by_role = {role.name: own_ports(role) for role in roles(one)}

    everything = [port for found in by_role.values() for port in found]
    assert len(everything) == len(set(everything))
    assert set(everything) <= {port for _, found in ports(one.values) for port in found}


@pytest.mark.parametrize(
    ("blocks", "sentence"),
    [
        (
            {"pserver": {"config": {"adminPort": 8740}}},
            "pserver.config.adminPort and trainer.config.adminPort both come to port 8740",
        ),
        ({"cube": {"config": {"shards": 60}}}, "master.config.port and cube.config.port both come to port 8700"),
        ({"master": {"config": {"port": 8400}}}, "master.config.port and serving.config.port both come to port 8400"),
        (
            {"pserver": {"replicas": 2, "config": {"adminPort": 65535}}},
            "pserver.config.adminPort comes to port 65536 on one machine, above 65535; set it lower",
        ),
    ],
)
def test_ports_that_would_meet_are_refused_by_their_keys(blocks: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        places(**blocks)

    assert sentence in str(refused.value)


def test_pservers_of_one_machine_are_reached_at_sockets_and_take_no_port() -> None:
    one = places(pserver={"replicas": 3, "config": {"port": 8700}})

    assert [role.file.forwarded for role in roles(one) if isinstance(role.file, PserverFile)] == [False] * 3
    assert "pserver.config.port" not in dict(ports(one.values))


def test_every_role_listens_on_this_machine_alone() -> None:
    one = places()

    assert {role.file.host for role in roles(one)} == {HOST}
    assert all(role.health is None or role.health.startswith(f"http://{HOST}:") for role in roles(one))


def test_state_and_scratch_are_inside_the_folder_and_each_role_has_its_own() -> None:
    folders: list[str] = []
    for role in roles(places(trainer={"replicas": 2}, serving={"replicas": 2})):
        for name in ("master", "pserver", "trainer", "serving"):
            block = getattr(role.file, name, None)
            if block is not None and role.command == name:
                folders += [getattr(block, key) for key in ("state_dir", "scratch_dir") if hasattr(block, key)]

    assert len(folders) == len(set(folders))
    assert all(folder.startswith("/run/local/") for folder in folders)


def test_the_store_is_the_folders_own_unless_the_file_names_one() -> None:
    assert places().store_url == "file:///run/local/store"
    assert places(store={"config": {"url": "file:///elsewhere"}}).store_url == "file:///elsewhere"


def test_trainers_and_pservers_may_end_and_the_others_may_not() -> None:
    ending = {role.command for role in roles(places()) if role.ends}

    assert ending == {"trainer", "pserver"}


def test_all_roles_have_the_same_internal_tokens_and_find_each_other() -> None:
    one = places()
    files = {role.name: role.file for role in roles(one)}
    master, serving = files["ctr-master-0"], files["ctr-serving-0"]

    assert {file.auth.internal_file for file in files.values()} == {"/run/local/tokens/internal"}
    assert isinstance(master, MasterFile)
    assert isinstance(serving, ServingFile)
    assert files["ctr-trainer-0"].master_address == f"{HOST}:{master.master.port}"  # type: ignore[attr-defined]
    assert serving.transfer_address == one.transfer
    assert one.config_file(next(roles(one))) == Path("/run/local/config/ctr-master-0.yaml")


def test_a_port_base_moves_every_port_that_is_not_set_itself() -> None:
    def taken(one: RunPlaces) -> set[int]:
        return {port for _, found in ports(one.values) for port in found}

    first = taken(places())
    moved = places(local={"portBase": 12300}, serving={"config": {"grpcPort": 0}})
    some = places(local={"portBase": 12300}, master={"config": {"statusPort": 9999}})

    assert taken(moved) == {port + 4000 for port in first} - {8402 + 4000}
    assert (some.master, some.info.master) == (f"{HOST}:12700", f"{HOST}:9999")
    assert (moved.info.predictions, moved.info.serving_admin) == ([f"{HOST}:12400"], f"{HOST}:12401")
    written = {port for role in roles(moved) for port in own_ports(role)} - {0}
    assert min(written) >= 12300
    assert set(RunPlaces(Path("/run/local"), moved.values).info.predictions) == set(moved.info.predictions)


def test_an_mlflow_server_is_told_of_the_run_in_an_experiment_of_its_folder() -> None:
    tracked = places(local={"trackingUrl": "http://mlflow:5000"})

    files = {role.command: role.file for role in roles(tracked)}

    for command in ("master", "trainer"):
        told = files[command].tracking  # type: ignore[attr-defined]
        assert (told.url, told.experiment) == ("http://mlflow:5000", "elastic-ctr /run/local")
    assert MasterFile.model_validate(files["master"].model_dump()).tracking is not None
    assert places().tracking is None
