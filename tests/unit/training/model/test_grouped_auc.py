import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.training.model.grouped_auc import (
    NOTHING,
    ROW,
    GroupSample,
    folded,
    grouped_auc,
    hashed,
    merged,
    rows_of,
    sample_of,
)
from quality_oracles import auc

# Group, bucket, clicks, shows without click.
IMPRESSIONS = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 5), st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60
)
Impressions = list[tuple[int, int, int, int]]


def sampled(impressions: Impressions) -> GroupSample:
    group, bucket, clicks, others = np.array(impressions, np.int64).reshape(-1, 4).T
    return merged([GroupSample(0, rows_of(hashed(group.astype(np.uint64)), bucket, clicks, others))])


def one_by_one(impressions: Impressions) -> tuple[float | None, int]:
    """With the AUC of all pairs of each group."""
    aucs, weights = [], []
    for group in {each[0] for each in impressions}:
        rows = np.array([each[1:] for each in impressions if each[0] == group])
        if rows[:, 1].sum() and rows[:, 2].sum():
            labels, scores = [1] * len(rows) + [0] * len(rows), [*rows[:, 0], *rows[:, 0]]
            aucs.append(auc(labels, scores, [*rows[:, 1], *rows[:, 2]]))
            weights.append(rows[:, 1:].sum())
    return (float(np.average(aucs, weights=weights)), len(aucs)) if aucs else (None, 0)


@given(IMPRESSIONS)
def test_gauc_is_the_mean_of_the_aucs_of_the_groups_by_their_impressions(impressions: Impressions) -> None:
    found, groups = grouped_auc(sampled(impressions))

    expected, counted = one_by_one(impressions)
    assert groups == counted
    assert found == (None if expected is None else pytest.approx(expected, abs=1e-12))


@given(IMPRESSIONS, st.integers(1, 4))
def test_parts_of_a_pass_have_the_groups_of_the_whole(impressions: Impressions, parts: int) -> None:
    found = merged([sampled(part) for number in range(parts) if (part := impressions[number::parts])])

    assert found.to_bytes() == sampled(impressions).to_bytes()


@given(IMPRESSIONS, st.integers(1, 9), st.integers(1, 40))
def test_parts_folded_one_after_the_other_are_those_merged_at_once(
    impressions: Impressions, parts: int, most: int
) -> None:
    pieces = [sampled(part) for number in range(parts) if (part := impressions[number::parts])]

    found = folded((piece.to_bytes() for piece in pieces), most)

    assert found.to_bytes() == merged(pieces, most).to_bytes()


@given(IMPRESSIONS, st.integers(1, 4), st.integers(1, 12))
def test_parts_that_sample_leave_the_whole_groups_below_the_least_bound(
    impressions: Impressions, parts: int, most: int
) -> None:
    pieces = [sampled(part) for number in range(parts) if (part := impressions[number::parts])]
    found = merged([merged([piece], most) for piece in pieces])

    whole = [each for each in impressions if not found.bound or hashed(np.array([each[0]], np.uint64))[0] < found.bound]
    expected = sampled(whole).rows if whole else NOTHING.rows
    assert found.rows.tolist() == expected.tolist()
    assert all(len(merged([piece], most).rows) <= most for piece in pieces)


def test_a_group_that_is_larger_than_the_sample_leaves_no_part_of_itself() -> None:
    found = merged([sampled([(1, bucket, 1, 1) for bucket in range(20)])], 10)

    assert (len(found.rows), grouped_auc(found)) == (0, (None, 0))


def test_hashes_of_keys_in_a_row_are_all_different_never_zero_and_evenly_spread() -> None:
    found = hashed(np.arange(100_000, dtype=np.uint64))

    assert len(set(found.tolist())) == 100_000
    assert found.min() > 0
    assert (found < 2**62).mean() == pytest.approx(0.25, abs=0.01)


@given(IMPRESSIONS, st.integers(1, 12))
def test_a_sample_comes_back_from_its_bytes(impressions: Impressions, most: int) -> None:
    sample = merged([sampled(impressions)], most)

    found = sample_of(sample.to_bytes())

    assert (found.bound, found.rows.tolist()) == (sample.bound, sample.rows.tolist())


@pytest.mark.parametrize("raw", [b"", b"1234567", b"12345678" + b"x" * (ROW.itemsize - 1)])
def test_bytes_that_are_no_sample_are_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match=f"a sample of groups of {len(raw)} bytes"):
        sample_of(raw)


def test_a_sample_with_a_count_that_is_not_finite_is_refused() -> None:
    rows = rows_of(np.array([5], np.uint64), np.array([1]), [np.nan], [1.0])

    with pytest.raises(ValueError, match="not finite"):
        sample_of(GroupSample(0, rows).to_bytes())
