from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cube.parts import SPECIAL_KEYS, as_keys, expected, values_for, write_parts, write_table
from cube_oracles import look_up
from elastic_ctr.cube.dictionary.format import Values
from elastic_ctr.cube.dictionary.table import PartitionNotHeld, PartsDoNotFit, Paths, VersionTable
from elastic_ctr.machine_code.compiled import bounds_checked

any_key = st.one_of(st.sampled_from(SPECIAL_KEYS), st.integers(0, 50), st.integers(0, 2**64 - 1))
some_keys = st.lists(any_key, max_size=80)
# Each dim is compiled once: records that share a cache line, that lie across two, that are one, that are longer than one. Bounds
# checks need none but the extremes.
COMPILED_DIMS = (1, 9) if bounds_checked() else (1, 9, 14, 17)


@settings(max_examples=90)
@given(st.data(), st.sampled_from([1, 2, 3, 7, 60]), some_keys, some_keys, st.integers(0, 2))
def test_a_lookup_answers_recent_overlay_then_overlay_then_full_then_missing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, partitions: int,
    below: list[int], others: list[int], overlays: int,
) -> None:  # fmt: skip
    dim = data.draw(st.sampled_from(COMPILED_DIMS), "dim")
    # Often the same keys again: only those tell which layer answers.
    again = st.lists(st.one_of(any_key, *([st.sampled_from(below)] if below else [])), max_size=80)
    (above, gone), (recent, recently_gone) = ((data.draw(again), data.draw(again)) for _ in range(2))
    paths = write_parts(
        tmp_path_factory.mktemp("parts"), as_keys(below), dim=dim, partitions=partitions,
        overlay_keys=as_keys(above) if overlays else None, deletions=as_keys(gone),
        recent_keys=as_keys(recent) if overlays > 1 else None, recent_deletions=as_keys(recently_gone),
    )  # fmt: skip
    known: dict[int, Values] = {key: values_for(as_keys([key]), dim, 1)[0] for key in below}
    for version, changed, deleted in ((2, above, gone), (3, recent, recently_gone))[:overlays]:
        known |= {key: values_for(as_keys([key]), dim, version)[0] for key in changed}
        known = {key: row for key, row in known.items() if key not in deleted}
    asked = as_keys([*below, *above, *gone, *recent, *recently_gone, *others, *SPECIAL_KEYS] * 2)

    table = VersionTable.open(2, dim, partitions, paths)
    values, missing = table.lookup(asked)

    wanted_values, wanted_missing = expected(asked, known, dim)
    assert missing.dtype == np.bool_
    assert missing.tolist() == wanted_missing
    assert values.tobytes() == wanted_values.tobytes()
    assert [each.tobytes() for each in look_up(table, asked)] == [values.tobytes(), missing.tobytes()]


def test_keys_of_another_type_are_refused(tmp_path: Path) -> None:
    table = write_table(tmp_path, as_keys([1]))

    with pytest.raises(ValueError, match="uint64"):
        table.lookup(np.array([1], np.int64))


def test_a_key_whose_partition_is_not_held_is_never_guessed(tmp_path: Path) -> None:
    keys = np.arange(40, dtype=np.uint64)
    paths = write_parts(tmp_path, keys, partitions=4, only=[1, 3])
    table = VersionTable.open(1, 4, 4, paths)

    values, missing = table.lookup(as_keys([0, 1, 3, 0]))

    assert not missing.any()
    assert values[1:3].tolist() == values_for(as_keys([1, 3]), 4).tolist()
    with pytest.raises(PartitionNotHeld, match="partition 2 of version 1"):
        table.lookup(as_keys([1, 6]))


def test_an_overlay_on_one_partition_leaves_the_others_alone(tmp_path: Path) -> None:
    keys = np.arange(1, 200, dtype=np.uint64)
    plain = write_parts(tmp_path / "plain", keys, partitions=2)
    overlaid = write_parts(tmp_path / "overlaid", keys, partitions=2, overlay_keys=keys)

    table = VersionTable.open(2, 4, 2, {0: plain[0], 1: overlaid[1]})

    values, _ = table.lookup(keys)
    odd = keys % np.uint64(2) == 1
    assert values[odd].tolist() == values_for(keys[odd], 4, 2).tolist()
    assert values[~odd].tolist() == values_for(keys[~odd], 4, 1).tolist()


def test_parts_given_as_what_they_are_not_are_refused(tmp_path: Path) -> None:
    keys = np.arange(20, dtype=np.uint64)
    paths = write_parts(tmp_path / "a", keys, partitions=2, overlay_keys=keys)
    other_base = write_parts(tmp_path / "b", keys, partitions=2, version=5)
    overlay = paths[0].overlay
    assert overlay is not None

    for wrong, reason in (
        ({1: paths[0]}, "partition 0 of 2, given as 1 of 2"),
        ({0: Paths(overlay)}, "kind overlay, given as full"),
        ({0: Paths(paths[0].full, paths[0].full)}, "kind full, given as overlay"),
        ({0: Paths(other_base[0].full, overlay)}, "lies over version 1"),
        ({0: Paths(paths[0].full, None, overlay)}, "there is no overlay below it"),
        ({9: paths[0]}, "partition 9"),
    ):
        with pytest.raises(PartsDoNotFit, match=reason):
            VersionTable.open(2, 4, 2, wrong)
    with pytest.raises(PartsDoNotFit, match="dim 4"):
        VersionTable.open(2, 5, 2, paths)


def test_a_table_of_nothing_is_empty() -> None:
    values, missing = VersionTable(1, 3, 4, {}).lookup(as_keys([0, 0]))

    assert values.shape == (2, 3)
    assert not missing.any()


def test_large_parts_of_several_sub_parts_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from elastic_ctr.cube.dictionary import perfect_hash

    monkeypatch.setattr(perfect_hash, "SUB_PART_KEYS", 1000)
    keys = np.arange(20_000, dtype=np.uint64) * np.uint64(977)
    table = write_table(tmp_path, keys, dim=9, partitions=2)
    asked = np.concatenate([keys, keys + np.uint64(1)])

    values, missing = table.lookup(asked)

    assert missing.tolist() == [key % 977 != 0 for key in asked.tolist()]
    assert values[1 : keys.size].tolist() == values_for(keys[1:], 9).tolist()
