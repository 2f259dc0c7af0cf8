from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.formats import tokens


@given(names=st.lists(st.binary(min_size=1, max_size=12), min_size=1, max_size=40, unique=True))
def test_the_slot_table_holds_each_name_once(names: list[bytes]) -> None:
    starts = np.cumsum([0, *map(len, names)]).astype(np.int64)
    table = np.empty(256, dtype=np.int32)

    tokens.fill(tokens.SlotTable(np.frombuffer(b"".join(names), dtype=np.uint8), starts, table))

    assert sorted(slot for slot in table if slot >= 0) == list(range(len(names)))
