"""A batch that is asked as two questions: each request whole in one of them, nothing lost between."""

from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.frontends.http_batches import REQUEST_ROWS, new_batch
from elastic_ctr.serving.frontends.submitted_batch import SubmittedBatch

SLOTS = 2


def batch_of(rows: list[int], random: Any) -> SubmittedBatch:
    lengths = np.array([random.randrange(4) for _ in range(SLOTS * sum(rows))], np.int64)
    feasigns = np.arange(lengths.sum(), dtype=np.uint64)
    batch = new_batch(len(rows), 1, 1, 1)
    batch.requests[:, REQUEST_ROWS] = rows
    numbers = np.arange(sum(rows), dtype=np.float32)[:, None]
    return SubmittedBatch(batch, 0, len(rows), Instances(feasigns, lengths, sum(rows), numbers=numbers), 0.0)


def are_the_batch(pieces: list[SubmittedBatch], whole: SubmittedBatch, rows: list[int]) -> None:
    assert [piece.begin for piece in pieces] == [0, *(piece.end for piece in pieces[:-1])]
    assert pieces[-1].end == len(rows)
    assert [piece.instances.rows for piece in pieces] == [sum(rows[piece.begin : piece.end]) for piece in pieces]
    for name in ("lengths", "feasigns", "numbers"):
        joined = np.concatenate([getattr(piece.instances, name) for piece in pieces])
        assert np.array_equal(joined, getattr(whole.instances, name))
    for piece in pieces:
        assert len(piece.instances.lengths) == SLOTS * piece.instances.rows == SLOTS * len(piece.instances.numbers)  # type: ignore[arg-type]
        assert piece.instances.lengths.sum() == len(piece.instances.feasigns)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.booleans()), min_size=1, max_size=40), st.randoms(use_true_random=False)
)
def test_the_runs_of_a_batch_are_the_batch_each_of_one_version(given: list[tuple[int, bool]], random: Any) -> None:
    rows, flags = [each for each, _ in given], np.array([flag for _, flag in given])
    whole = batch_of(rows, random)

    runs = whole.runs(flags)

    are_the_batch(runs, whole, rows)
    kinds = [set(flags[run.begin : run.end].tolist()) for run in runs]
    assert all(len(kind) == 1 for kind in kinds)
    assert all(one != next_one for one, next_one in pairwise(kinds))


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_the_halves_of_a_batch_are_the_batch(rows: list[int], random: Any) -> None:
    whole = batch_of(rows, random)

    halves = whole.halves()

    are_the_batch(halves, whole, rows)
    # The first has half of the rows, and one request less would not.
    assert halves[0].instances.rows >= sum(rows) // 2
    assert halves[0].instances.rows - rows[halves[0].end - 1] <= sum(rows) // 2
