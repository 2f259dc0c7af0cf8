from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.generations.checkpoint_files import (
    PublishedSample,
    PublishRefused,
    checkpoint_name,
    compare,
    describe_refusals,
    first_generation,
    folder_of,
    jobs_of,
    judge,
    last_begun,
    merged_rows,
    rows_differ,
)
from elastic_ctr.training.master.ledger.rows import PassRow, SaveRow

Values = npt.NDArray[np.float32]
KEYS = np.array([3, 7, 2**64 - 1], np.uint64)
PULLED = np.array([[0.123456789, -1.5, 2.0], [1e-7, 0.25, -3.0], [4.0, 5.0, 6.0]], np.float32)


def printed(
    values: Values,
) -> Values:
    """As the parameter server writes them: 6 significant digits."""
    return np.array([[np.float32(f"{value:.6g}") for value in row] for row in values], np.float32).reshape(
        len(values), -1
    )


def exported(
    keys: Sequence[int],
    values: Values,
    written: Sequence[int] | None = None,
) -> control.JobResult:
    return control.JobResult(
        keys=np.array(keys, "<u8").tobytes(),
        values=values.astype("<f4").tobytes(),
        written=bytes(written if written is not None else [1] * len(keys)),
    )


def test_values_equal_within_their_printed_digits_are_accepted() -> None:
    published = compare(
        KEYS, PULLED, [exported([3, 2**64 - 1], printed(PULLED[[0, 2]])), exported([7], printed(PULLED[[1]]))], 3
    )

    assert published.left_out == 0
    np.testing.assert_array_equal(published.values, printed(PULLED))


@given(st.lists(st.tuples(*[st.floats(-10, 10, width=32, allow_subnormal=False)] * 3), min_size=3, max_size=3))
def test_six_printed_digits_of_any_trained_values_are_accepted(rows: list[tuple[float, float, float]]) -> None:
    pulled = np.array(rows, np.float32)

    published: PublishedSample = compare(KEYS, pulled, [exported(KEYS.tolist(), printed(pulled))], 3)

    assert published.left_out == 0


def test_a_column_shifted_by_one_is_refused_with_the_key_and_the_column() -> None:
    shifted = np.roll(PULLED, 1, axis=1)

    with pytest.raises(PublishRefused, match=r"key 3 was trained to 0\.123456791 in column 0 and written as 2"):
        compare(KEYS, PULLED, [exported(KEYS.tolist(), shifted)], 3)


def test_the_seventh_digit_may_differ_and_the_fifth_may_not() -> None:
    compare(KEYS, PULLED, [exported([3], PULLED[[0]] * np.float32(1 + 1e-6))], 3)

    with pytest.raises(PublishRefused, match="1 of 3 sample keys differ"):
        compare(KEYS, PULLED, [exported([3], PULLED[[0]] * np.float32(1 + 2e-5))], 3)


def test_a_row_that_was_left_out_is_zeros_and_counted() -> None:
    published = compare(KEYS, PULLED, [exported([3, 2**64 - 1], PULLED[[0, 2]])], 3)

    assert published.left_out == 1
    np.testing.assert_array_equal(published.values[1], [0, 0, 0])


def test_an_embedx_that_was_left_out_is_counted() -> None:
    without = PULLED.copy()
    without[2, 1:] = 0

    published = compare(KEYS, PULLED, [exported(KEYS.tolist(), without)], 3)

    assert published.left_out == 1


def test_a_first_order_weight_that_was_lost_with_the_embedx_is_refused() -> None:
    without = PULLED.copy()
    without[2] = 0

    with pytest.raises(PublishRefused, match=f"key {2**64 - 1}"):
        compare(KEYS, PULLED, [exported(KEYS.tolist(), without)], 3)


def test_a_value_of_an_older_version_may_differ_and_is_counted_as_left_out() -> None:
    published = compare(KEYS, PULLED, [exported(KEYS.tolist(), PULLED + 1, [0, 0, 0])], 3)

    assert published.left_out == 3
    np.testing.assert_array_equal(published.values, PULLED + 1)


def test_a_value_that_is_no_number_is_refused() -> None:
    broken = PULLED.copy()
    broken[1, 1] = np.nan

    with pytest.raises(PublishRefused, match="key 7"):
        compare(KEYS, PULLED, [exported(KEYS.tolist(), broken)], 3)


def test_no_sample_keys_are_no_difference() -> None:
    assert compare(KEYS[:0], PULLED[:0], [], 3).left_out == 0


# -- judging -----------------------------------------------------------------------------------------------------------

SAMPLES = [("a", 2, 0), ("b", 2, 1), ("c", 2, 2), ("d", 2, 1)]


def scores(*given: float) -> Values:
    return np.array(given, np.float32)


def test_equal_scores_have_equal_auc() -> None:
    live, published = judge(scores(0.1, 0.2, 0.9, 0.3), scores(0.1, 0.2, 0.9, 0.3), SAMPLES, 0.0)

    assert live == published
    assert live is not None
    assert live > 0.8


def test_a_loss_above_the_limit_is_refused_with_the_way_out() -> None:
    with pytest.raises(PublishRefused, match=r"more than maxPublishLoss 0\.01 lower; lower model\.table's thresholds"):
        judge(scores(0.1, 0.2, 0.9, 0.3), scores(0.9, 0.2, 0.1, 0.3), SAMPLES, 0.01)


def test_a_loss_within_the_limit_and_a_gain_are_accepted() -> None:
    judge(scores(0.1, 0.2, 0.9, 0.3), scores(0.9, 0.2, 0.1, 0.3), SAMPLES, 1.0)
    judge(scores(0.9, 0.2, 0.1, 0.3), scores(0.1, 0.2, 0.9, 0.3), SAMPLES, 0.0)


def test_a_sample_without_clicks_has_no_auc_and_is_accepted() -> None:
    assert judge(scores(0.1), scores(0.9), [("a", 2, 0)], 0.0) == (None, None)


# -- rows --------------------------------------------------------------------------------------------------------------


def test_equal_rows_do_not_differ_and_an_absent_partition_holds_none() -> None:
    assert rows_differ({0: 5, 1: 0}, {0: 5}) == ""


def test_the_first_difference_is_named() -> None:
    assert rows_differ({0: 5, 3: 7, 4: 1}, {0: 5, 3: 6}) == "partition 3 holds 6 rows of 7"


def test_rows_of_all_pservers_are_put_together() -> None:
    assert merged_rows([control.JobResult(rows={0: 1}), control.JobResult(rows={1: 2})]) == {0: 1, 1: 2}


# -- names and orders --------------------------------------------------------------------------------------------------


def save_row(steps: tuple[str, ...], kind: str | None) -> SaveRow:
    return SaveRow(4, 2, steps, kind, 77 if kind else None, "c-g2", 0.0, "saved")


def test_a_delta_is_exported_with_the_versions_it_stands_on_and_a_base_with_none() -> None:
    delta = jobs_of(save_row(("checkpoint", "delta"), "delta"), b"keys", [10, 11])
    base = jobs_of(save_row(("shrink", "base", "batch", "checkpoint"), "base"), b"keys", [10, 11])

    assert [(j.kind, list(j.chain), j.folder) for j in delta] == [
        (control.CHECKPOINT, [], "save/4-2-checkpoint"),
        (control.EXPORT, [10, 11], "save/4-2-delta"),
    ]
    assert [(j.kind, list(j.chain)) for j in base] == [(control.EXPORT, []), (control.CHECKPOINT, [])]


def test_folders_and_checkpoints_of_two_generations_have_different_names() -> None:
    one = PassRow(4, "20200401/03", (), 0, False, "saving", 1)

    assert checkpoint_name(one, 1) == "20200401-03-g1"
    assert checkpoint_name(one, 1) != checkpoint_name(one, 2)
    assert folder_of(save_row((), None), "base") == "save/4-2-base"


def test_every_folder_that_a_day_end_writes_is_uploaded_and_so_deleted() -> None:
    save = save_row(("shrink", "base", "batch", "checkpoint"), "base")

    written = {folder_of(save, step) for step in save.steps if step != "shrink"}

    assert written == {job.folder for job in jobs_of(save, b"keys", [])}


def test_refusals_are_described_most_frequent_first_with_an_example() -> None:
    told = describe_refusals({"empty": (3, []), "no_colon": (12, ["1 0 17", "x"])})

    assert told == 'no_colon 12 (first: "1 0 17"), empty 3'
    assert describe_refusals({"bad": (1, ["the column '价格'"])}) == """bad 1 (first: "the column '价格'")"""


def test_a_ledger_that_is_new_beside_old_checkpoints_begins_above_their_generations() -> None:
    assert first_generation([]) == 1
    assert first_generation(["20200401-00-g1/", "20200401-0005-g12/", "20200401-02-g3", "somebody-elses"]) == 13


def test_the_last_version_that_was_begun_is_the_newest_folder() -> None:
    assert last_begun([]) == 0
    assert last_begun(["1795840400/", "1795840436/", "donefile/", "1795840401"]) == 1795840436
