from itertools import pairwise

import numpy as np
import pytest

from elastic_ctr.features.record_text import shuffled_lines


def text_of(lines: list[bytes]) -> "np.ndarray[tuple[int], np.dtype[np.uint8]]":
    return np.frombuffer(b"".join(lines), np.uint8)


@pytest.mark.parametrize("piece", [16, 64, 1 << 20])
def test_a_text_longer_than_a_group_is_shuffled_with_few_of_its_lines_in_memory(piece: int) -> None:
    lines = [b"%d %b\n" % (number, b"x" * (number % 40)) for number in range(400)]

    pieces = [list(shuffled_lines(text_of(lines), seed, group=4 * piece, piece=piece)) for seed in (1, 1, 2)]
    found = [b"".join(each).splitlines(keepends=True) for each in pieces]

    assert sorted(found[0]) == sorted(lines)
    assert found[0] == found[1] != found[2]
    assert max(map(len, pieces[0])) < 2 * piece + 50
    # Neighbours come far from one another.
    places = {line: place for place, line in enumerate(found[0])}
    apart = [abs(places[one] - places[other]) for one, other in pairwise(lines)]
    assert np.median(apart) > (100 if piece == 1 << 20 else 3)


def test_an_empty_text_has_no_lines_to_shuffle() -> None:
    assert list(shuffled_lines(text_of([]), 1)) == []
