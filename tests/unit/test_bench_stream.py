"""The figures of the stream's bench, from what was noted."""

import json
import math
import threading
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from bench.late_clicks import PAGE, trained
from bench.page import with_table
from bench.stream import Producer, freshness, mean_loss, quantiles, window_losses
from bench.stream_demo import HOUR, DriftingTruth, Judged
from bench.stream_log import Kind
from bench.stream_prober import Prober
from bench.stream_stages import NAMES, ReleaseWatcher, click_stages, summary

from cube.published import keys_of, publish_version
from cube.running import until
from elastic_ctr.cube.release import Holder, Placement, ReleaseDocument
from elastic_ctr.features.synthetic import PRESETS, Truth
from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout


class Nowhere:
    """A log that keeps how much was appended."""

    kind: Kind = "folder"
    url, partition, unit, offset = "file:///nowhere?follow", "clicks-0", "bytes", 0

    def append(self, lines: Sequence[bytes]) -> None:
        self.offset += sum(map(len, lines))

    def finish(self) -> None:
        """It has all."""


NOWHERE = Nowhere()


def producer(*noted: tuple[float, float, float]) -> Producer:
    return Producer(Truth(PRESETS["easy"], 1), NOWHERE, 1, list(noted))


def test_a_click_is_as_fresh_as_the_first_answer_of_a_version_that_has_its_offset() -> None:
    appended = producer((10, 100.0, 1), (20, 101.0, 3), (30, 102.0, 2))
    # 9 was overtaken by 10, which answers before it.
    knows = {8: (0, 10), 9: (10, 20), 10: (20, 30), 11: (30, 40)}

    seconds, clicks = freshness(appended, {8: 103.0, 10: 104.0, 9: 105.0}, knows)

    assert seconds.tolist() == [3.0, 3.0, 2.0]
    assert clicks.tolist() == [1, 3, 2]


def test_clicks_that_no_answer_knew_are_not_left_out_of_the_figures() -> None:
    appended = producer((10, 100.0, 1), (20, 101.0, 3))

    with pytest.raises(ValueError, match="in no version that answered"):
        freshness(appended, {8: 103.0}, {8: (0, 10), 9: (10, 20)})
    seconds, clicks = freshness(appended, {8: 103.0}, {8: (0, 10), 9: (10, 20)}, so_far=True)
    assert (seconds.tolist(), clicks.tolist()) == ([3.0], [1.0])


def test_quantiles_are_of_clicks_not_of_appends() -> None:
    found = quantiles(np.array([3.0, 1.0, 2.0]), np.array([1.0, 98.0, 1.0]))

    assert found == {"p50": 1.0, "p90": 1.0, "p99": 2.0, "max": 3.0}
    assert quantiles(np.empty(0), np.empty(0)) == {}


def test_a_clicks_stages_are_those_of_the_version_that_answered_with_it_first_and_add_up() -> None:
    noted = [(10, 100.0, 1), (20, 101.0, 3), (30, 102.0, 2)]
    # 9 was overtaken by 10.
    first, knows = {8: 103.0, 10: 105.0, 9: 106.0}, {8: (0, 10), 9: (10, 20), 10: (20, 30)}

    rows, clicks = click_stages(noted, first, knows, {10: [102.5, 103.0, 104.0, 104.5]})

    assert rows.tolist() == [[1.5, 0.5, 1.0, 0.5, 0.5], [0.5, 0.5, 1.0, 0.5, 0.5]]
    assert clicks.tolist() == [3, 2]
    assert rows.sum(axis=1).tolist() == [4.0, 3.0]
    assert summary(rows, clicks)["published"] == {"mean": 1.1, "slowest": 1.5}
    assert summary(*click_stages(noted, first, knows, {})) == {}
    assert tuple(summary(rows, clicks)) == NAMES


def test_a_version_is_loaded_when_holders_have_all_its_partitions(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    publish_version(store, tmp_path / "work", 5, keys_of(1, 2, 3))
    watcher = ReleaseWatcher("nowhere:1", store)
    document = ReleaseDocument(generation=1, revision=1, placement=Placement(shards=1), wanted=(5,))

    watcher.look(document, 10.0)
    watcher.look(document.model_copy(update={"holders": {5: {"a:1": Holder(partitions=(0, 2))}}}), 11.0)
    both = {5: {"a:1": Holder(partitions=(0, 2)), "b:1": Holder(partitions=(1, 2))}}
    watcher.look(document.model_copy(update={"holders": both}), 12.0)
    assert watcher.times() == {}
    watcher.look(document.model_copy(update={"holders": both, "live": 5}), 13.0)

    assert watcher.times()[5][1:] == [10.0, 12.0, 13.0]


class PublishedScores(BaseHTTPRequestHandler):
    """Answers as versions one after the other, each but the last with the scores that the store has."""

    versions: ClassVar[list[tuple[int, float]]] = []

    def do_POST(self) -> None:
        lines = json.loads(self.rfile.read(int(self.headers["content-length"])))["inputs"][0]["data"]
        version, score = self.versions.pop(0) if len(self.versions) > 1 else self.versions[0]
        outputs = [
            {"name": "probability", "data": [score] * len(lines)},
            {"name": "version", "data": [version] * len(lines)},
        ]
        body = json.dumps({"outputs": outputs}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Silent."""


def test_answers_of_other_scores_than_the_versions_count_as_wrong(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for version in (1, 2):
        sample = {"line": "5:0", "published": version / 10}
        store.put_bytes(json.dumps(sample).encode(), layout.sample_file(version))
    # The first answer of a version is to the lines of the one before it, and is not compared.
    PublishedScores.versions = [(1, 0.9), (1, 0.1), (2, 0.9), (2, 0.2), (2, 0.1)]
    server = ThreadingHTTPServer(("127.0.0.1", 0), PublishedScores)
    threading.Thread(target=server.serve_forever).start()
    prober = Prober(f"127.0.0.1:{server.server_port}", f"file://{tmp_path}", ["6:0"])
    asking = threading.Thread(target=prober.run)
    asking.start()
    try:
        until(lambda: bool(prober.wrong))
    finally:
        prober.stop()
        asking.join()
        server.shutdown()
        server.server_close()

    assert prober.wrong[0] == "version 2 answers 0.1 for '5:0', and was published with 0.2"
    assert (list(prober.first), len(prober.wrong)) == ([1, 2], prober.asked - 4)
    assert prober.worst == pytest.approx(0.1)


def test_the_loss_of_a_time_is_the_mean_of_the_records_trained_then() -> None:
    def trained(ordinal: int, at: float | None, shows: float, loss: float) -> dict[str, Any]:
        return {"ordinal": ordinal, "trainedAt": at, "quality": {"before": {"shows": shows, "logloss": loss}}}

    losses = window_losses(
        {"passes": [trained(1, 10.0, 100, 0.5), trained(2, 11.0, 300, 0.7), trained(3, None, 1, 9.0)]}
    )

    assert mean_loss(losses, 0, 20) == pytest.approx(0.65)
    assert mean_loss(losses, 11, 20) == 0.7
    assert math.isnan(mean_loss(losses, 12, 20))


def test_a_truth_that_drifts_becomes_another_one() -> None:
    truth = DriftingTruth(3, 100)
    before = truth.weights.copy()
    truth._began -= 100
    truth.draw(1, np.random.default_rng(1))

    assert abs(np.corrcoef(before.ravel(), truth.weights.ravel())[0, 1]) < 0.2
    assert truth.weights.std() == pytest.approx(before.std(), rel=0.1)


def test_the_better_model_has_the_higher_auc() -> None:
    judged = Judged()
    for _ in range(3):
        judged.clicks.append(np.array([False, True, True]))
        judged.scores["stream"].append(np.array([0.1, 0.5, 0.6]))
        judged.scores["hourly"].append(np.array([0.4, 0.3, 0.6]))

    assert judged.auc("stream") == judged.auc("stream", 1) == 1
    assert judged.auc("hourly") == 0.5
    assert Judged().auc("stream") is None
    assert HOUR > 0


@pytest.mark.parametrize(
    ("way", "shows", "clicks", "first_click"),
    [("joined", 4, 2, 0.001), ("split", 4, 2, 0.501), ("wait 60 s", 4, 1, 60.001), ("fake negative", 6, 2, 0.501)],
)
def test_each_way_to_train_late_clicks_has_their_impressions_and_what_it_knows_of_the_clicks(
    way: str, shows: int, clicks: int, first_click: float
) -> None:
    clicked, delay = np.array([False, True, False, True]), np.array([9.0, 0.5, 9.0, 70.0])

    found = trained(way, clicked, delay, 100.0)

    assert (found.show.sum(), found.click.sum()) == (shows, clicks)
    assert found.second[found.click > 0][0] == pytest.approx(first_click)
    assert found.row[found.click > 0][0] == 1
    assert (np.diff(found.second) >= 0).all()
    assert trained(way, clicked, delay, 50.0).click.sum() <= clicks


def test_a_table_is_written_between_its_marks_alone() -> None:
    before = PAGE.read_text()

    after = with_table(before, "docs/performance.md", "late clicks", ["| made |"])

    kept = [line for line in after.splitlines() if line in before.splitlines()]
    assert after.count("| made |") == 1
    assert "| joined | adam |" not in after
    assert [line for line in kept if line.startswith("#")] == [
        line for line in before.splitlines() if line.startswith("#")
    ]
    with pytest.raises(ValueError, match=r"docs/performance\.md has no place for the table: <!-- nothing: "):
        with_table(before, "docs/performance.md", "nothing", [])
