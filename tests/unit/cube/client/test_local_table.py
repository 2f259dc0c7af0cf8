from pathlib import Path

import numpy as np
import pytest

from cube.parts import as_keys, values_for, write_parts
from elastic_ctr.cube.client.connection import VersionNotHeld
from elastic_ctr.cube.client.local_table import LocalTable
from elastic_ctr.cube.dictionary.table import Paths

KEYS = np.arange(1, 101, dtype=np.uint64)


async def test_parts_of_this_machine_answer_as_a_server_would(tmp_path: Path) -> None:
    table = LocalTable(4, 3)
    table.set_parts({1: write_parts(tmp_path, KEYS, partitions=3)})

    values, missing = await table.lookup(1, as_keys([5, 0, 500]))
    pooled = table.lookup_pooled(1, as_keys([5, 6, 500]), np.array([0, 2, 3]))

    assert values[0].tolist() == values_for(as_keys([5]), 4)[0].tolist()
    assert missing.tolist() == [False, False, True]
    assert pooled.tolist() == [values_for(as_keys([5, 6]), 4).sum(axis=0).tolist(), [0.0] * 4]
    assert await table.keep_alive([1]) == {1: set()}


async def test_versions_come_and_go_and_what_stays_is_not_opened_again(tmp_path: Path) -> None:
    table = LocalTable(4, 2)
    one, two = (write_parts(tmp_path / str(version), KEYS, partitions=2, version=version) for version in (1, 2))
    table.set_parts({1: one})
    for paths in one.values():
        paths.full.unlink()

    table.set_parts({1: one, 2: two})

    assert (await table.lookup(1, KEYS))[0].tolist() == values_for(KEYS, 4, 1).tolist()
    assert (await table.lookup(2, KEYS))[0].tolist() == values_for(KEYS, 4, 2).tolist()
    table.set_parts({2: two})
    with pytest.raises(VersionNotHeld, match="none of its parts"):
        await table.lookup(1, KEYS)


async def test_parts_that_cannot_be_opened_leave_what_was_there(tmp_path: Path) -> None:
    table = LocalTable(4, 2)
    table.set_parts({1: write_parts(tmp_path, KEYS, partitions=2)})

    with pytest.raises(FileNotFoundError):
        table.set_parts({2: {0: Paths(tmp_path / "absent.dict")}})

    assert not (await table.lookup(1, KEYS))[1].any()


async def test_a_partition_that_is_not_mapped_is_not_held(tmp_path: Path) -> None:
    table = LocalTable(4, 2)
    table.set_parts({1: write_parts(tmp_path, KEYS, partitions=2, only=[1])})

    with pytest.raises(VersionNotHeld, match="partition 0 of version 1"):
        await table.lookup(1, as_keys([2]))
    with pytest.raises(VersionNotHeld, match="partition 0 of version 1"):
        table.lookup_pooled(1, as_keys([2]), np.array([0, 1]))
    await table.close()
    with pytest.raises(VersionNotHeld):
        await table.lookup(1, as_keys([1]))
