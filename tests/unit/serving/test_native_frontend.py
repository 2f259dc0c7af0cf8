"""A batch that is asked as two questions: each request whole in one of them, nothing lost between."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.serving.batching.instances import Instances
from elastic_ctr.serving.frontends.http_batches import REQUEST_ROWS, new_batch
from elastic_ctr.serving.frontends.native_http import SubmittedBatch

SLOTS = 2


@given(st.lists(st.integers(1, 9), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_the_halves_of_a_batch_are_the_batch(rows: list[int], random: Any) -> None:
    lengths = np.array([random.randrange(4) for _ in range(SLOTS * sum(rows))], np.int64)
    feasigns = np.arange(lengths.sum(), dtype=np.uint64)
    batch = new_batch(len(rows), 1, 1, 1)
    batch.requests[:, REQUEST_ROWS] = rows
    whole = SubmittedBatch(batch, 0, len(rows), Instances(feasigns, lengths, sum(rows)), 0.0)

    halves = whole.halves()

    assert [half.begin for half in halves] == [0, *(half.end for half in halves[:-1])]
    assert halves[-1].end == len(rows)
    assert [half.instances.rows for half in halves] == [sum(rows[half.begin : half.end]) for half in halves]
    assert np.array_equal(np.concatenate([half.instances.lengths for half in halves]), lengths)
    assert np.array_equal(np.concatenate([half.instances.feasigns for half in halves]), feasigns)
    for half in halves:
        assert len(half.instances.lengths) == SLOTS * half.instances.rows
        assert half.instances.lengths.sum() == len(half.instances.feasigns)
    # The first has half of the rows, and one request less would not.
    assert halves[0].instances.rows >= sum(rows) // 2
    assert halves[0].instances.rows - rows[halves[0].end - 1] <= sum(rows) // 2
