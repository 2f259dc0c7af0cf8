from __future__ import annotations

import pytest

from elastic_ctr.seqfile.records import record_dtype


def test_a_record_is_packed_as_in_the_file() -> None:
    assert record_dtype(9).itemsize == 4 + 4 + 12 + 40
    assert record_dtype(9, inner_lengths=False).itemsize == 4 + 4 + 8 + 36


def test_a_value_without_floats_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one float, not 0"):
        record_dtype(0)
