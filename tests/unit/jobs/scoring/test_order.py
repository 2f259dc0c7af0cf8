"""Where an order writes, and what it sends there."""

from pathlib import Path

import pytest

from credentials import tokens
from elastic_ctr.config.data import Data
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.jobs.scoring.order import Order
from elastic_ctr.jobs.scoring.run import Given
from elastic_ctr.jobs.scoring.scoring_job import OutputRefused
from elastic_ctr.jobs.scoring.worker import Place

STORE = "http://file-server:8080"


def given(order: Order, source: str, models: str = STORE, *, tokens_given: bool = False) -> Given:
    data = Data.model_validate({"source": {"url": source}, "path": "/logs", "start": "20200401/00", "slots": ["0"]})
    return order.given(
        data,
        Place(StoreConfig(url=models), tokens=tokens("secret")),
        tokens_given=tokens_given,
        live=lambda: None,
        told=lambda _: None,
        processes=1,
        scratch=Path("/scratch"),
    )


@pytest.mark.parametrize(
    ("output", "sent"),
    [("scores/day", True), (f"{STORE}/scores", True), ("http://elsewhere:8080/scores", False), ("file:///scores", False)],
)  # fmt: skip
def test_the_token_of_the_release_goes_to_its_own_store_alone(output: str, sent: bool) -> None:
    order = Order(deed="predict", output=output)

    assert (given(order, "hdfs://namenode:9000").folder.tokens is None) is not sent
    assert given(order, "hdfs://namenode:9000", tokens_given=True).folder.tokens is not None


@pytest.mark.parametrize("output", ["logs", "logs/20200401/00", "logs/scores", "", "x/../logs"])
@pytest.mark.parametrize("deed", ["predict", "evaluate"])
@pytest.mark.parametrize("source", ["hdfs://namenode:9000", "file:///"])
def test_an_output_among_the_hours_is_refused(source: str, deed: str, output: str) -> None:
    order = Order.model_validate({"deed": deed, "output": f"{source.removesuffix('/')}/{output}"})

    with pytest.raises(OutputRefused, match=r"--output .* overlaps .*/logs, where the hours are: .*; give a folder"):
        given(order, source)


def test_an_output_in_a_store_among_the_hours_is_refused_for_predictions_alone() -> None:
    store = "hdfs://namenode:9000/logs/models"

    with pytest.raises(OutputRefused, match="overlaps"):
        given(Order(deed="predict", output="scores"), "hdfs://namenode:9000", store)
    found = given(Order(deed="evaluate", output="scores/job"), "hdfs://namenode:9000", store)

    assert found.folder.at.url == f"{store}/scores/job"


def test_an_output_beside_or_above_a_given_file_is_refused_and_one_below_its_folder_is_not(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    file = tmp_path / "a/lines.txt"
    file.write_text("1 0 5:0\n")

    def order(output: Path) -> Order:
        return Order(deed="predict", output=output.as_uri(), files=(str(file),))

    for output in (tmp_path / "a", tmp_path):
        with pytest.raises(OutputRefused, match=r"is a folder with input in it: .*/a/lines\.txt; give one"):
            given(order(output), "hdfs://namenode:9000")
    assert given(order(tmp_path / "a/scores"), "hdfs://namenode:9000").folder.at.url.endswith("/a/scores")


def test_an_order_without_an_output_works_in_the_scratch_folder() -> None:
    assert given(Order(deed="evaluate"), "file:///").folder.at.url == "file:///scratch/job"
