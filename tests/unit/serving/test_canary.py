"""Which requests a candidate answers, against the same rule in whole numbers of Python."""

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.serving.batching.canary import NO_CANARY, CanaryRule
from elastic_ctr.serving.batching.instances import Instances, instances_of

SLOTS = ("user", "ad")
WORD = 1 << 64
keys = st.integers(0, WORD - 1)
rows = st.lists(st.tuples(st.lists(keys, max_size=3), st.lists(keys, max_size=3)), min_size=1, max_size=12)


def mixed(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) % WORD
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ word >> 27) * 0x94D049BB133111EB % WORD
    return word ^ word >> 31


def chosen(rule: CanaryRule, instances: Instances, *first: int) -> list[bool]:
    found: list[bool] = rule.chosen(instances, SLOTS, np.array(first, np.int64)).tolist()
    return found


@given(rows, st.sampled_from(["", "user", "ad"]), st.data())
def test_a_request_is_chosen_by_the_keys_of_its_first_instance(
    rows: list[tuple[list[int], list[int]]], feature: str, data: Any
) -> None:
    first = sorted(data.draw(st.sets(st.integers(0, len(rows) - 1), min_size=1)))

    def keys_of(row: int) -> list[int]:
        of_feature = [key for slot, keys in zip(SLOTS, rows[row], strict=True) if slot == feature for key in keys]
        # A request of an unknown user is chosen by what else it has.
        return of_feature or [key for keys in rows[row] for key in keys]

    hashes = [mixed(sum(mixed(key) for key in keys_of(row)) % WORD) for row in first]
    share = data.draw(st.floats(0, 0.5))
    # Where doubles round there is no right answer.
    assert not any(abs(each - share * WORD) < 1 << 12 and share for each in hashes)

    found = chosen(CanaryRule(share, feature), instances_of(rows, 2), *first)

    assert found == [each < share * WORD for each in hashes]


def test_as_many_are_chosen_as_the_share_says_and_the_same_ones_again() -> None:
    users = [[[user], [user % 7]] for user in range(20_000)]
    rule = CanaryRule(0.05, "user")

    found = np.array(chosen(rule, instances_of(users, 2), *range(20_000)))
    with_other_ads = np.array(chosen(rule, instances_of([[user, [8, 9]] for user, _ in users], 2), *range(20_000)))

    # Three standard deviations of the binomial distribution.
    assert abs(found.mean() - 0.05) < 3 * (0.05 * 0.95 / 20_000) ** 0.5
    assert np.array_equal(found, with_other_ads)
    assert not chosen(NO_CANARY, instances_of(users[:9], 2), *range(9))[0]


def test_a_greater_share_has_all_requests_of_a_smaller_one() -> None:
    asked = instances_of([[[user], []] for user in range(2000)], 2)

    small, great = (np.array(chosen(CanaryRule(share, "user"), asked, *range(2000))) for share in (0.1, 0.3))

    assert small.sum() < great.sum()
    assert not (small & ~great).any()


def test_where_the_model_has_no_such_slot_all_slots_choose() -> None:
    asked = instances_of([[[user], [1]] for user in range(50)], 2)

    assert chosen(CanaryRule(0.5, "town"), asked, *range(50)) == chosen(CanaryRule(0.5), asked, *range(50))
