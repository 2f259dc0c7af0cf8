"""What decides how a pass is learned, asserted on what Paddle did: steps of its optimiser, and logits that it predicted."""

import importlib.util
import math
from pathlib import Path

import numpy as np
import pytest

from contract.engine_world import Clicks, engine
from elastic_ctr.config.model import Model, SparseRule, Table, VectorRule
from elastic_ctr.training.model.evaluation import BUCKETS, BUCKETS_PER_LOGIT
from elastic_ctr.training.model.grouped_auc import bucket_in_group, grouped_auc, hashed

pytestmark = pytest.mark.skipif(importlib.util.find_spec("paddle") is None, reason="paddlepaddle is not installed")

KEY, BATCHES = 7, 240
# A row of adam ends in the powers of 0.9 and 0.999 that its steps made.
MODEL = Model(
    network="deepfm",
    embedding_dim=3,
    partitions=4,
    table=Table(embed=SparseRule(name="adam"), embedx=VectorRule(name="adam")),
)
LINES: list[Clicks] = [(1, number % 2, {"a": [KEY]}) for number in range(BATCHES)]


def steps_of(tmp_path: Path, gradient_merge: int) -> float:
    """Steps that the server made with the gradients of one batch after the other."""
    with engine(tmp_path, MODEL, gradient_merge=gradient_merge) as started:
        started.trainers[0].train(LINES)
        row = started.saved()[KEY]
    assert row.show == BATCHES
    # embed_w, m, v, and the powers of 0.9 and 0.999, which a new row begins with at 1.
    return round(math.log(row.rest[4]) / math.log(0.999)) - 1


def test_the_servers_make_a_step_of_nearly_each_batch_unless_gradients_are_merged(tmp_path: Path) -> None:
    alone, merged = steps_of(tmp_path / "1", 1), steps_of(tmp_path / "12", 12)

    # Two that come at once may still be one, the more often the busier the machine is.
    assert BATCHES / 3 < alone <= BATCHES
    assert BATCHES / 13 <= merged < alone


def test_an_offset_moves_every_logit_by_itself(tmp_path: Path) -> None:
    with engine(tmp_path, MODEL) as started:
        [trainer] = started.trainers
        trainer.train(LINES)
        found = [trainer.predict([(3, 1, {"a": [KEY]})], offset) for offset in (0.0, 1.5, -2.0)]

    assert [list(shows.values()) for shows in found] == [[3]] * 3
    bucket, higher, lower = (next(iter(shows)) for shows in found)
    assert [higher - bucket, lower - bucket] == pytest.approx([1.5 * BUCKETS_PER_LOGIT, -2 * BUCKETS_PER_LOGIT], abs=1)
    assert 0 < lower < higher < BUCKETS - 1


def test_a_net_learns_around_its_offset(tmp_path: Path) -> None:
    with engine(tmp_path, MODEL) as started:
        [trainer] = started.trainers
        before = trainer.predict(LINES[:1], -6.0)
        trainer.train([(1, 1, {"a": [KEY]})] * BATCHES)
        after = trainer.predict(LINES[:1], -6.0)

    assert min(after) > max(before)


# tests/pipeline/test_days.py finds each show in the table in `make test`.
@pytest.mark.nightly
def test_every_record_is_counted_and_trained_once_whatever_the_number_of_threads(tmp_path: Path) -> None:
    lines: list[Clicks] = [(2, number % 2, {"a": [number % 50 + 1], "b": [100 + number % 3]}) for number in range(3000)]
    with engine(tmp_path, MODEL, threads=4) as started:
        [trainer] = started.trainers
        trained, predicted = trainer.train(lines), trainer.predict(lines)
        rows = started.saved()

    assert sum(trained.values()) == sum(predicted.values()) == 2 * len(lines)
    assert sum(rows[key].show for key in range(1, 51)) == 2 * len(lines)


def test_a_file_that_is_not_there_is_refused_and_the_next_one_is_trained(tmp_path: Path) -> None:
    with engine(tmp_path, MODEL) as started:
        [trainer] = started.trainers
        refused = trainer.refused(tmp_path / "gone.txt")
        trained = trainer.train(LINES)

    assert refused == "No such file or directory"
    assert sum(trained.values()) == len(LINES)


def test_the_sample_of_groups_has_the_impressions_of_each_users_lines(tmp_path: Path) -> None:
    users = {7: [(5, 1), (6, 0), (5, 1)], 2**63 + 9: [(6, 1), (5, 0)], 0: [(5, 1), (6, 0)]}
    lines: list[Clicks] = [(1, click, {"a": [ad], "b": [user]}) for user, seen in users.items() for ad, click in seen]
    with engine(tmp_path, MODEL, threads=2, group="b", group_rows=1000) as started:
        [trainer] = started.trainers
        trainer.train(lines * 20)
        trainer.predict(lines)
        found = trainer.groups()
        scored = {line[2]["b"][0]: trainer.predict([line]) for line in lines}

    sums: dict[int, tuple[float, float]] = {}
    for row in found.rows:
        before = sums.get(int(row["group"]), (0, 0))
        sums[int(row["group"])] = (before[0] + row["clicks"], before[1] + row["others"])
    keys = [user for user in users if user]
    hashes = hashed(np.array(keys, np.uint64)).tolist()
    assert sums == {hashes[0]: (2, 1), hashes[1]: (1, 1)}
    # Of user 7 the ad that was clicked is above the other; of the other user it is a matter of what was learned of both.
    assert {int(row["bucket"]) for row in found.rows} >= {*bucket_in_group(np.array([*scored[7]])).tolist()}
    auc, groups = grouped_auc(found)
    assert groups == 2
    assert auc is not None
    assert auc >= 3 / 5
