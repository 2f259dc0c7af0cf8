"""docs/models.md: its networks are those there are, its block is a model, and its measured table is made of results."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from bench.networks import DATA, page, settings_of, tables, verdicts

from elastic_ctr import network as own
from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.config.model import Model
from elastic_ctr.config.networks import NETWORKS, Lr
from elastic_ctr.config.own_network import OwnNetwork
from elastic_ctr.operate.cli.given_values import load_values

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text()


def results(**aucs: float) -> dict[str, Any]:
    rows = {
        data: {
            "truth": {"auc": 0.8},
            **{name: {"auc": 0.65, "seconds": 16.2, "recordsPerSecond": 1000.0, "dense": 7} for name in NETWORKS},
            **{
                name.replace("_", "-"): {"auc": auc, "seconds": 16.2, "recordsPerSecond": 1000.0, "dense": 7}
                for name, auc in aucs.items()
            },
        }
        for data in DATA
    }
    return {"quick": False, "rows": rows, "about": "Measured today."}


def test_the_page_says_of_every_network_what_it_is_good_for() -> None:
    rows = re.search(r"## Which network\n(.*?)\n## ", PAGE, re.DOTALL)
    assert rows is not None

    assert re.findall(r"^\| `([\w-]+)` \|", rows[1], re.MULTILINE) == [*NETWORKS]


def test_the_page_begins_with_a_model_that_is_taken() -> None:
    block, *_ = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)

    assert Model.model_validate(yaml.safe_load(block)["model"]).network.name == "dcn-v2"


def test_a_name_alone_leaves_the_settings_of_an_earlier_file_behind_and_a_map_does_not(tmp_path: Path) -> None:
    files = []
    for number, network in enumerate(({"name": "deepfm", "layers": [8]}, "lr", {"name": "lr"})):
        data = {"source": {"url": "file:///logs"}, "start": "20200401/00", "slots": ["a"]}
        files.append(tmp_path / f"{number}.yaml")
        files[-1].write_text(yaml.safe_dump({"data": data, "model": {"network": network}}))

    assert load_values([files[0], files[1]], None).model.network == Lr()
    with pytest.raises(
        ConfigRefused, match=r"model\.network\.layers is not a setting of lr, which has none; remove it"
    ):
        load_values([files[0], files[2]], None)


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_is_measured_with_settings_that_are_taken(name: str) -> None:
    assert Model.model_validate({"network": settings_of(name)}).network.name == name


def test_the_table_has_auc_and_share_of_each_network_and_says_how_the_goals_stand() -> None:
    text = "\n".join(tables(results(dcn_v2=0.68, fm=0.6475)))

    assert "| dcn-v2 | 0.6800, 0.60 | 0.6800, 0.60 | 0.6800, 0.60 | 16 | 1,000 | 7 |" in text
    assert "| the truth | 0.8000, 1 | 0.8000, 1 | 0.8000, 1 | | | |" in text
    said = verdicts(results(dcn_v2=0.68, fm=0.6475)["rows"])
    assert "- pairwise: dcn-v2 is +0.0300 from lr; goal +0.02, holds" in said
    assert "- third-order: xdeepfm is +0.0000 from lr; goal +0.02, MISSED" in said
    assert "- easy: the worst is fm, -0.0025 from lr; goal -0.002, MISSED" in said
    assert "- easy: the worst is fm, -0.0015 from lr; goal -0.002, holds" in verdicts(results(fm=0.6485)["rows"])


def test_the_page_takes_the_table_and_none_of_a_quick_run() -> None:
    written = page(PAGE, results())

    assert "Measured today." in written
    assert page(written, results()) == written
    with pytest.raises(ValueError, match="of a quick run"):
        page(PAGE, {**results(), "quick": True})


def test_the_network_of_your_own_on_the_page_is_taken_with_the_settings_beside_it(tmp_path: Path) -> None:
    [source] = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    [block] = [each for each in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "file:" in each]
    (tmp_path / "my_network.py").write_text(source)
    data = {"source": {"url": "file:///logs"}, "start": "20200401/00", "slots": ["a"]}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump({"data": data, **yaml.safe_load(block)}))

    assert load_values([tmp_path / "values.yaml"], None).model.network == OwnNetwork(
        source=source, settings={"layers": [64, 32], "dropout": 0.1}
    )


def test_the_page_names_what_a_network_of_your_own_may_import_and_gets() -> None:
    [section] = re.findall(r"## A network of your own\n(.*?)\n## ", PAGE, re.DOTALL)

    assert [name for name in own.__all__ if f"`{name}`" not in section] == ["Fields", "Inputs"]
    assert [f for f in own.Inputs._fields if f"`inputs.{f}`" not in section] == ["classes"]
