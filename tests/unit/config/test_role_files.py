from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from config.test_values_file import INTAKE, values
from elastic_ctr.config.helm_yaml import Loader
from elastic_ctr.config.load import ConfigRefused, dump, load
from elastic_ctr.config.role_files import IntakeFile, RoleFile, ScoringFile, TrainerFile
from elastic_ctr.config.section import EXACT
from elastic_ctr.operate.local.plan import Role, RunPlaces, roles

CLICKS_BY_HTTP = f"data: {{{INTAKE}}}\nintake: {{enabled: true}}"
ROLES = list(roles(RunPlaces(Path("/run/local"), values(CLICKS_BY_HTTP))))


@pytest.mark.parametrize("role", ROLES, ids=[role.name for role in ROLES])
def test_a_role_file_that_is_written_is_read_back_the_same(tmp_path: Path, role: Role) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(dump(role.file))

    assert load(type(role.file), path) == role.file


def test_every_kind_of_role_file_is_among_them() -> None:
    # A pod of scoring is a command on this machine.
    assert {type(role.file) for role in ROLES} == set(_leaves(RoleFile)) - {ScoringFile}


def test_an_intake_that_joins_needs_the_features() -> None:
    data = {
        "source": {"url": "intake://"}, "start": "earliest", "format": "jsonl", "label": "click", "shows": "n",
        "stream": {"lateClicks": True, "join": {"key": "id"}},
    }  # fmt: skip
    with pytest.raises(ValidationError, match=r"features is missing; with data\.stream\.join, they say which columns"):
        IntakeFile.model_validate({"data": data, "intake": {}})


def _leaves(kind: type[RoleFile]) -> list[type[RoleFile]]:
    below = kind.__subclasses__()
    return [leaf for each in below for leaf in _leaves(each)] if below else [kind]


def test_a_role_file_is_camel_case_and_ends_are_null_where_nothing_was_given() -> None:
    given = next(role.file for role in ROLES if isinstance(role.file, TrainerFile))

    written = yaml.load(dump(given), Loader=Loader)

    assert written["masterAddress"] == "127.0.0.1:8700"
    assert written["model"]["sparseDim"] is None
    assert written["data"]["slots"] == ["0", "1", "2", "3"]


def test_a_role_refuses_late_clicks_by_a_rule_that_divides_by_shows(tmp_path: Path) -> None:
    given = next(role.file for role in ROLES if isinstance(role.file, TrainerFile))
    document = yaml.load(dump(given), Loader=Loader)
    document["data"] |= {"source": {"url": "file:///x?follow"}, "start": "earliest", "end": None}
    document["data"]["stream"]["lateClicks"] = True
    document["model"]["table"]["embed"]["name"] = "adagrad"
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(document))

    with pytest.raises(ConfigRefused, match=r"lateClicks does not go with model\.table\.embed\.name adagrad"):
        load(TrainerFile, tmp_path / "config.yaml")


def test_large_integers_are_written_whole(tmp_path: Path) -> None:
    given = next(role.file for role in ROLES if isinstance(role.file, TrainerFile))
    model = given.model.model_copy(update={"sparse_dim": EXACT})
    path = tmp_path / "config.yaml"
    path.write_text(dump(given.model_copy(update={"model": model})))

    assert "sparseDim: 9007199254740991" in path.read_text()
    assert load(TrainerFile, path).model.sparse_dim == EXACT


def test_only_transfer_knows_shards_and_replicas() -> None:
    given = values(f"{CLICKS_BY_HTTP}\ncube: {{replicasPerShard: 2, config: {{shards: 3}}}}")
    more = list(roles(RunPlaces(Path("/run/local"), given)))
    before = {role.name: dump(role.file) for role in ROLES}

    # A pod that exists in both has the same ports on one machine only while it is the first of all.
    changed = {role.name for role in more if before.get(role.name, dump(role.file)) != dump(role.file)}

    assert changed - {"ctr-cube-s1-0"} == {"ctr-cube-transfer-0"}
    assert not any("shards" in dump(role.file) for role in more if role.command != "cube-transfer")
