import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.cli.given_values import merged
from elastic_ctr.operate.cli.values import File, Sizes, ValuesRefused, text_of, translate
from operate.cli.source_files import ALL, DATA_CONFIG, SLOT_CONF, values_of

CHART = Path(__file__).parents[4] / "charts" / "elastic-ctr"


def refusal_of(data_config: str = DATA_CONFIG, slot_conf: str = SLOT_CONF, options: Sizes = ALL) -> str:
    with pytest.raises(ValuesRefused) as refused:
        values_of(data_config, slot_conf, options)
    return str(refused.value)


def test_every_setting_of_the_source_has_its_place_in_the_values() -> None:
    resources = {"cpu": 4, "memory": "20Gi"}

    assert values_of() == {
        "data": {
            "source": {"url": "hdfs://192.168.48.87:9000", "user": "root"}, "path": "/train_data",
            "start": "20200401/00", "end": "20200401/03", "slots": list(map(str, range(27))),
        },
        "model": {"sparseDim": 1000001},
        "trainer": {"replicas": 2, "resources": resources},
        "pserver": {"replicas": 2, "resources": resources},
        "cube": {"config": {"shards": 5}},
    }  # fmt: skip


def test_a_value_that_is_not_given_is_left_to_the_chart() -> None:
    text = "HDFS_ADDRESS=hdfs://n:9000\nSTART_DATE_HR=20200401/00\nEND_DATE_HR=\nSPARSE_DIM=''\n"

    assert values_of(text, "7\n", Sizes()) == {
        "data": {"source": {"url": "hdfs://n:9000"}, "start": "20200401/00", "slots": ["7"]}
    }


def test_the_file_is_what_the_program_loads() -> None:
    text = text_of(values_of())

    assert yaml.safe_load(text) == values_of()
    loaded = Values.model_validate(yaml.safe_load(text))
    assert (loaded.trainer.replicas, loaded.pserver.replicas, loaded.cube.config.shards) == (2, 2, 5)
    assert loaded.model.sparse_dim == 1000001
    assert loaded.data.slots == tuple(map(str, range(27)))


def test_the_file_is_what_the_chart_takes() -> None:
    schema = CHART / "values.schema.json"
    if not schema.exists():
        pytest.skip(f"{schema} is not there")
    # As Helm does: what is validated are the chart's own values with the user's laid over them.
    whole = merged(yaml.safe_load((CHART / "values.yaml").read_text()), values_of())

    Draft202012Validator(json.loads(schema.read_text())).validate(whole)


@pytest.mark.parametrize(
    "slot", ["1e3", "0x10", "007", "1_000", "on", "null", "~", "0o7", "-1", "+1", ".5", str(2**53)]
)
def test_a_slot_stays_the_text_it_was_for_every_reader_of_yaml(slot: str) -> None:
    text = text_of(values_of(slot_conf=f"{slot}\n"))

    assert f'slots: ["{slot}"]' in text
    assert Values.model_validate(yaml.safe_load(text)).data.slots == (slot,)


def test_a_password_is_left_out_with_a_note() -> None:
    with_password = translate(File("data.config", DATA_CONFIG), File("slot.conf", "0"), ALL)
    without = translate(File("data.config", DATA_CONFIG.replace("root,i", "clicks")), File("slot.conf", "0"), ALL)

    assert "root" in json.dumps(with_password.values)
    assert with_password.notes == ["HDFS_UGI holds a password, which is left out: WebHDFS asks for the user alone"]
    assert (without.values["data"]["source"]["user"], without.notes) == ("clicks", [])


def test_an_address_with_a_variable_is_refused_unless_it_is_given() -> None:
    text = DATA_CONFIG.replace("192.168.48.87", "${IP}")

    assert refusal_of(text) == (
        "data.config line 1: HDFS_ADDRESS holds ${IP}, which nothing here fills in; write the value itself, "
        "or say --hdfs-address"
    )
    given_too = values_of(text, options=replace(ALL, hdfs_address="hdfs://n:9000"))
    assert given_too["data"]["source"]["url"] == "hdfs://n:9000"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("SPARSE_DIM", "SPARSE_DIMENSION", "data.config line 6: SPARSE_DIMENSION is none of HDFS_ADDRESS, HDFS_UGI"),
        ("/train_data", "$DATA/x", "data.config line 5: DATASET_PATH holds $DATA, which nothing here fills in"),
        ("/train_data", "$(pwd)", "data.config line 5: DATASET_PATH holds a command, which nothing here executes"),
        ('export HDFS_ADDRESS="hdfs://192.168.48.87:9000"', "", "data.config lacks HDFS_ADDRESS; add HDFS_ADDRESS=…"),
        ("START_DATE_HR=20200401/00", "START_DATE_HR=", "data.config lacks START_DATE_HR"),
        ("hdfs://192.168.48.87:9000", "192.168.48.87:9000", "HDFS_ADDRESS: data.source.url: '192.168.48.87:9000' is"),
        ("START_DATE_HR=20200401/00", "START_DATE_HR=20200431/00", "START_DATE_HR: data.start: '20200431/00' names"),
        ("END_DATE_HR=20200401/03", "END_DATE_HR=2020", "END_DATE_HR: data.end: '2020' is not YYYYMMDD/HH"),
        ("1000001", "million", "SPARSE_DIM: model.sparseDim: input should be a valid integer"),
        ("1000001", "1", "SPARSE_DIM: model.sparseDim: input should be greater than or equal to 2"),
        ("root,i", ",i", "HDFS_UGI names no user before its comma; write HDFS_UGI=user"),
        ("20200401/03", "20200331/23", "is before start 20200401/00; swap them"),
    ],
)
def test_a_wrong_value_is_refused_by_the_name_it_has_in_data_config(old: str, new: str, reason: str) -> None:
    assert reason in refusal_of(DATA_CONFIG.replace(old, new))


def test_all_errors_are_reported_at_once() -> None:
    said = refusal_of("FOO=1\nDATASET_PATH=$X\n", "a b\n")

    assert [line.split(" ")[:3] for line in said.splitlines()] == [
        ["data.config", "line", "1:"],
        ["data.config", "line", "2:"],
        ["data.config", "lacks", "HDFS_ADDRESS;"],
        ["data.config", "lacks", "START_DATE_HR;"],
        ["slot.conf:", "the", "slot"],
    ]


@pytest.mark.parametrize(
    ("slot_conf", "reason"), [("", "slot.conf: the slot list is empty"), ("1\n1\n", "slot.conf: the slot list names 1")]
)
def test_a_slot_list_that_is_none_is_refused(slot_conf: str, reason: str) -> None:
    assert reason in refusal_of(slot_conf=slot_conf)


def test_more_shards_than_partitions_are_refused() -> None:
    assert "cube.config.shards 61 is above model.partitions 60" in refusal_of(options=replace(ALL, cube=61))


LINES = st.lists(
    st.one_of(
        st.sampled_from(DATA_CONFIG.splitlines()),
        st.text(st.characters(codec="utf-8") | st.sampled_from("AB=$`'\"\\#;&|(){}~"), max_size=30),
    ),
    max_size=8,
).map("\n".join)


@settings(deadline=None)
@given(LINES, LINES | st.just(SLOT_CONF))
def test_any_two_texts_make_values_or_a_refusal(data_config: str, slot_conf: str) -> None:
    with suppress(ValuesRefused):
        found = values_of(data_config, slot_conf)

        assert Values.model_validate(yaml.safe_load(text_of(found))) == Values.model_validate(found)
