"""`model.network` as a network of the user's own: what is taken, and the sentence for what is not."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from elastic_ctr.config.cube_settings import CubePodConfig
from elastic_ctr.config.load import ConfigRefused, dump, load, settings
from elastic_ctr.config.model import Model, ModelInput, digest_of_model
from elastic_ctr.config.own_network import MAX_SOURCE, OwnNetwork, read_source
from elastic_ctr.config.role_files import CubeServerFile
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.cli.given_values import load_values

SOURCE = "def logit(inputs, settings):\n    return inputs.pooled[:, :1]\n"
DATA = {"source": {"url": "file:///logs"}, "start": "20200401/00", "slots": ["a"]}


def network(**given: Any) -> OwnNetwork:
    found = Model.model_validate({"network": given}).network
    assert isinstance(found, OwnNetwork)
    return found


def refusal(given: Any, **model: Any) -> str:
    with pytest.raises(ConfigRefused) as refused:
        settings(Values, {"data": DATA, "model": {"network": given, **model}}, "values.yaml")
    return str(refused.value).removeprefix("values.yaml: ")


@pytest.mark.parametrize("name", [{}, {"name": "deepfm"}, {"name": "own"}, {"name": "anything"}], ids=str)
def test_a_source_wins_over_a_name_which_helm_merges_into_it(name: dict[str, Any]) -> None:
    assert network(**name, source=SOURCE) == OwnNetwork(source=SOURCE)


def test_settings_are_numbers_texts_and_lists_in_the_order_of_their_names() -> None:
    found = network(source=SOURCE, settings={"b": 2.0, "a": [[1, "x"], [True]], "c": 0.5}).settings

    assert list(found.items()) == [("a", ((1, "x"), (True,))), ("b", 2), ("c", 0.5)]
    assert isinstance(found["b"], int), "Helm writes 2.0 as 2"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"source": "def logit(:\n"}, "model.network.source: line 1 is not Python: invalid syntax"),
        ({"source": SOURCE + "return 1\n"}, "model.network.source: line 3 is not Python: 'return' outside function"),
        ({"source": "x = 1\n"}, "model.network.source: has no function logit; add `def logit(inputs, settings)`"),
        ({"source": "(" * 5000}, "model.network.source: line 1 is not Python: too many nested parentheses"),
        ({"source": "\0"}, "model.network.source: is not Python: source code string cannot contain null bytes"),
        ({"source": "#" * (MAX_SOURCE + 1)}, f"model.network.source: string should have at most {MAX_SOURCE} characters"),
        ({"source": ""}, "model.network.source: string should have at least 1 character"),
        ({"source": 5}, "model.network.source: 5 is no text to YAML; write it in quotes"),
        ({"source": None}, "model.network.source is null"),
        ({"file": "x.py"}, "model.network: the file x.py cannot be read from here; give its text: --set-file model.network.source=x.py"),
        ({"file": "x.py", "source": SOURCE}, "model.network: it has a source and a file; leave one of them out"),
        ({"source": SOURCE, "layers": [4]}, "model.network.layers is not a key of a network of your own, whose settings stand under model.network.settings; move it there"),
        ({"source": SOURCE, "settings": [1]}, "model.network.settings: '[1]' is not a map of settings by name"),
        ({"source": SOURCE, "settings": {"a": {"b": 1}}}, "model.network.settings: a is {'b': 1}; a setting is a number up to 2^53"),
        ({"source": SOURCE, "settings": {"a": None}}, "model.network.settings: a is None; a setting is a number"),
        ({"source": SOURCE, "settings": {"a": float("nan")}}, "model.network.settings: a is nan; a setting is a number"),
        ({"source": SOURCE, "settings": {"a": 2**53}}, "model.network.settings: a is 9007199254740992; a setting is a number"),
        ({"source": SOURCE, "settings": {"a": [[[1]]]}}, "model.network.settings: a is a list of lists of lists"),
        ({"source": SOURCE, "settings": {"a": [0] * 1025}}, "model.network.settings: a has a list of 1025 items; at most 1024"),
        ({"source": SOURCE, "settings": {"a": "x" * 1025}}, "model.network.settings: a is a text of 1025 characters; at most 1024"),
        ({"source": SOURCE, "settings": {1: 2}}, "model.network.settings: 1 is no name of a setting; use letters"),
        ({"source": SOURCE, "settings": {f"a{n}": 1 for n in range(65)}}, "model.network.settings: 65 settings are more than 64"),
        ("my_network.py", "model.network: there is no network 'my_network.py'; the networks are deepfm, slot-dnn"),
    ],
    ids=lambda given: str(given)[:60],
)  # fmt: skip
def test_an_invalid_network_of_your_own_is_refused_in_a_sentence(given: Any, words: str) -> None:
    assert refusal(given).startswith(words)


def test_softmax_is_refused() -> None:
    assert refusal({"source": SOURCE}, output="softmax").startswith(
        "model: output softmax is that of the output layers of"
    )


@pytest.mark.parametrize(
    "source",
    ["from x import *\n", "from x import other as logit\n", "if True:\n    logit = make()\n", "class logit: ...\n"],
)
def test_any_way_to_define_the_function_is_left_to_the_trainer(source: str) -> None:
    assert network(source=source).source == source


def test_the_text_of_every_editor_is_one_text_and_nothing_of_it_runs() -> None:
    loud = 'raise SystemExit("it ran")\n' + SOURCE

    assert network(source="\ufeff" + loud.replace("\n", "\r\n")).source == loud


@pytest.mark.parametrize("change", [{"source": SOURCE + "# more\n"}, {"settings": {"a": 2}}], ids=str)
def test_another_source_or_setting_is_another_model(change: dict[str, Any]) -> None:
    given = {"source": SOURCE, "settings": {"a": 1}}
    one, other = (Model.model_validate({"network": each}) for each in (given, {**given, **change}))

    assert digest_of_model(one, ModelInput(("a",))) != digest_of_model(other, ModelInput(("a",)))


def test_the_order_of_settings_and_the_default_of_helm_change_no_digest() -> None:
    one = Model.model_validate({"network": {"source": SOURCE, "settings": {"a": 1.0, "b": [2]}}})
    other = Model.model_validate({"network": {"name": "deepfm", "source": SOURCE, "settings": {"b": [2], "a": 1}}})

    assert digest_of_model(one, ModelInput(("a",))) == digest_of_model(other, ModelInput(("a",)))


def values_file(folder: Path, given: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "values.yaml").write_text(yaml.safe_dump({"data": DATA, "model": {"network": given}}))
    return folder / "values.yaml"


def test_a_file_counts_from_the_folder_of_the_values_file(tmp_path: Path) -> None:
    (tmp_path / "networks").mkdir()
    (tmp_path / "networks/my_network.py").write_text(SOURCE)

    found = load_values([values_file(tmp_path, {"file": "networks/my_network.py"})], None).model.network

    assert found == OwnNetwork(source=SOURCE)


def test_a_file_without_end_is_refused_before_it_is_read_whole(tmp_path: Path) -> None:
    with pytest.raises(ConfigRefused, match="it has more than 16 MiB, the most of a value"):
        load_values([values_file(tmp_path, {"name": "lr"})], ["model.network.source=/dev/zero"])
    with pytest.raises(ValueError, match="/dev/zero has more than 65536 characters"):
        read_source(Path("/dev/zero"))


def test_set_file_gives_the_source_that_helm_takes_and_wins_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "my_network.py").write_text(SOURCE)
    (tmp_path / "other.py").write_text(SOURCE + "# other\n")
    values = values_file(tmp_path, {"file": "my_network.py", "settings": {"a": 1}})

    found = load_values([values], [f"model.network.source={tmp_path}/other.py"]).model.network

    assert found == OwnNetwork(source=SOURCE + "# other\n", settings={"a": 1})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file or directory"),
        (b"\xff\xfe", "is not text in UTF-8"),
        (b"#" * (MAX_SOURCE + 1), "has more than 65536 characters; move what is long into a package of the image"),
    ],
    ids=lambda given: str(given)[:30],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "my_network.py").write_bytes(content)

    with pytest.raises(ConfigRefused, match=r"model\.network\.file 'my_network\.py': .*") as refused:
        load_values([values_file(tmp_path, {"file": "my_network.py"})], None)

    assert words in str(refused.value)


def test_a_role_file_holds_every_text_as_it_is(tmp_path: Path) -> None:
    source = SOURCE + "#\t: 'ö' \"中\" # {x} - |\n\x0c\n    # trailing \n\n"
    role = CubeServerFile(
        model=Model.model_validate({"network": {"source": source, "settings": {"a": [[1], ["x"]], "b": 0.5}}}),
        store=StoreConfig(),
        cube=CubePodConfig(),
        transfer_address="ctr:8300",
    )
    (tmp_path / "config.yaml").write_text(dump(role))

    assert load(CubeServerFile, tmp_path / "config.yaml") == role
