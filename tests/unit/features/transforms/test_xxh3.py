"""The keys of texts, beside the library `xxhash`, which hashes one text a call."""

import random
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.features.transforms.xxh3 import SECRET, Bytes, Offsets, hash_of_two, hashes_of
from elastic_ctr.machine_code.compiled import compiled

# The ways of the algorithm end at 3, 8, 16, 128 and 240 bytes; blocks of a longer text are 1,024 bytes.
LENGTHS = [*range(300), *range(1020, 1030), *range(2040, 2060), 5000]


def arrays(texts: list[bytes]) -> tuple[Bytes, Offsets]:
    return np.frombuffer(b"".join(texts), np.uint8), np.cumsum([0, *map(len, texts)], dtype=np.int64)


@pytest.mark.parametrize("prefix", [b"", b"\0", b"user\0", b"a" * 250 + b"\0"])
def test_a_text_of_any_length_has_the_hash_that_the_library_gives(prefix: bytes) -> None:
    dice = random.Random(7)
    texts = [dice.randbytes(length) for length in LENGTHS]

    hashes = hashes_of(prefix, *arrays(texts))

    assert hashes.dtype == np.uint64
    assert hashes.tolist() == [xxhash.xxh3_64_intdigest(prefix + text) for text in texts]


@given(st.lists(st.binary(max_size=40)), st.integers(0, 5), st.integers(0, 5))
def test_texts_may_be_a_part_of_the_array(texts: list[bytes], before: int, after: int) -> None:
    data, offsets = arrays([bytes(before), *texts, bytes(after)])

    hashes = hashes_of(b"x\0", data, offsets[1 : len(texts) + 2])

    assert hashes.tolist() == [xxhash.xxh3_64_intdigest(b"x\0" + text) for text in texts]


@pytest.mark.parametrize("offsets", [[], [-1, 2], [0, 4], [0, 3, 2]])
def test_offsets_outside_the_array_are_refused(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="offsets of the texts"):
        hashes_of(b"x\0", np.zeros(3, np.uint8), np.array(offsets, np.int64))


@compiled
def hash_of_parts(prefix: Any, before: Any, data: Any, size: Any, secret: Any) -> Any:
    return hash_of_two(prefix, before, np.uint64(data.ctypes.data), size, np.uint64(secret.ctypes.data))


def test_a_prefix_and_a_short_text_have_the_hash_of_both_together() -> None:
    dice = random.Random(8)
    for before in range(1, 8):
        for size in range(max(4 - before, 1), 17 - before):
            prefix, text = dice.randbytes(before), dice.randbytes(size)
            # Whatever stands behind a short text does not count.
            data = np.frombuffer(text + b"\xff" * 8, np.uint8).copy()

            found = hash_of_parts(
                np.uint64(int.from_bytes(prefix, "little")), np.uint64(before), data, np.uint64(size), SECRET
            )

            assert found == xxhash.xxh3_64_intdigest(prefix + text), (before, size)
