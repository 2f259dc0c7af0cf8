from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import pytest

from elastic_ctr.training.model.evaluation import BUCKETS, bucket_of
from elastic_ctr.training.model.grouped_auc import (
    GROUP_BUCKETS,
    GroupSample,
    bucket_in_group,
    grouped_auc,
    hashed,
    merged,
    rows_of,
)
from elastic_ctr.training.model.score_counter import ScoreCounter
from quality_oracles import histogram_of_scores


class Tensor:
    """As Paddle hands it over: an array of its own type, with a level of detail."""

    def __init__(self, values: npt.NDArray[np.int64], begins: list[int]) -> None:
        self._values = values
        self._begins = begins

    def __array__(self) -> npt.NDArray[np.int64]:
        return self._values

    def lod(self) -> list[list[int]]:
        return [self._begins]


def keys_of(lists: list[list[int]]) -> Tensor:
    flat = [key for keys in lists for key in keys]
    values = np.array(flat, np.uint64).astype(np.int64).reshape(-1, 1)
    return Tensor(values, np.cumsum([0, *map(len, lists)]).tolist())


def column(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    return np.asarray(values, np.float32).reshape(-1, 1)


def test_batches_of_many_threads_are_all_counted() -> None:
    counter = ScoreCounter()
    logits, clicks = column(np.linspace(-3, 3, 64)), column([0, 1] * 32)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(counter.count, logits, np.ones_like(clicks), clicks) for _ in range(2000)]:
            done.result()

    probability = 1 / (1 + np.exp(-logits.reshape(-1).astype(np.float64)))
    expected = histogram_of_scores(probability, clicks.reshape(-1), np.ones(64))
    assert [each.tolist() for each in counter.histograms()] == [(2000 * each).tolist() for each in expected]


def test_a_run_begins_with_nothing_of_the_one_before() -> None:
    counter = ScoreCounter()
    counter.begin(10)
    counter.count(column([0]), column([1]), column([np.nan]), keys_of([[5]]))
    counter.count(column([np.nan]), column([1]), column([1]), keys_of([[5]]))

    counter.begin()

    counter.check()
    assert sum(each.sum() for each in counter.histograms()) == 0
    assert len(counter.groups().rows) == 0


def test_a_logit_that_is_not_a_number_is_noted_and_counts_nothing() -> None:
    counter = ScoreCounter()

    counter.count(column([0, np.nan]), column([1, 1]), column([1, 1]))

    with pytest.raises(FloatingPointError, match="a prediction is not a number"):
        counter.check()
    assert sum(each.sum() for each in counter.histograms()) == 0


def test_an_error_of_a_batch_in_a_thread_of_paddle_is_raised_by_the_check() -> None:
    counter = ScoreCounter()

    counter.count(column([0, 0]), column([1]), column([1]))

    with pytest.raises(ValueError, match="length"):
        counter.check()


def test_logits_beyond_the_histogram_are_in_its_last_buckets() -> None:
    counter = ScoreCounter()

    counter.count(column([-np.inf, np.inf]), column([3, 2]), column([1, 2]))

    clicks, others = counter.histograms()
    assert (clicks[0], clicks[BUCKETS - 1], others[0], others[BUCKETS - 1]) == (1, 2, 2, 0)


def test_the_group_of_a_record_is_its_first_key_and_none_without_one() -> None:
    counter = ScoreCounter()
    counter.begin(100)

    counter.count(
        column([0, 0, 1, 0, 2]), column([1, 2, 1, 1, 1]), column([1, 0, 0, 0, 1]),
        keys_of([[7, 8], [7], [2**64 - 1], [0], []]),
    )  # fmt: skip

    rows = counter.groups().rows
    expected = {int(hashed(np.array([key], np.uint64))[0]): sums for key, sums in ((7, (1, 2)), (2**64 - 1, (0, 1)))}
    assert {int(row["group"]): (row["clicks"], row["others"]) for row in rows} == expected


@pytest.mark.parametrize("most", [50, 5000])
def test_groups_are_sampled_over_batches_as_over_all_records_at_once(most: int) -> None:
    random = np.random.default_rng(1)
    keys, logits = random.integers(1, 300, 3000), random.normal(size=3000)
    clicks = random.integers(0, 2, 3000)
    counter = ScoreCounter()
    counter.begin(most)

    for begin in range(0, 3000, 100):
        cut = slice(begin, begin + 100)
        lists = [[key] for key in keys[cut].tolist()]
        counter.count(column(logits[cut]), column(np.ones(100)), column(clicks[cut]), keys_of(lists))

    bucket = bucket_in_group(bucket_of(logits.astype(np.float32).astype(np.float64)))
    every = GroupSample(0, rows_of(hashed(keys.astype(np.uint64)), bucket, clicks, 1 - clicks))
    found = counter.groups()
    assert found.to_bytes() == merged([every, GroupSample(found.bound, every.rows[:0])]).to_bytes()
    assert (found.bound > 0) == (most == 50)
    assert most // 2 < len(found.rows) <= 3000


def test_a_sample_of_as_many_rows_as_a_group_has_buckets_holds_a_group_whatever_its_scores() -> None:
    random = np.random.default_rng(1)
    keys, logits = random.integers(1, 11, 60_000), random.uniform(-16, 16, 60_000)
    counter = ScoreCounter()
    counter.begin(GROUP_BUCKETS)

    counter.count(
        column(logits), column(np.ones(60_000)), column(logits > 0), keys_of([[key] for key in keys.tolist()])
    )

    assert grouped_auc(counter.groups()) == (1.0, 1)
