import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cube.parts import MAX_KEY, SPECIAL_KEYS, as_keys, values_for
from elastic_ctr.cube.builder.part import PartFile, PartIdentity, build_full, build_overlay, merge_full
from elastic_ctr.cube.dictionary import perfect_hash
from elastic_ctr.cube.dictionary.format import DictionaryPart, Keys, Values

keys_drawn = st.lists(st.one_of(st.sampled_from(SPECIAL_KEYS), st.integers(0, 2**64 - 1)), max_size=60)
Block = tuple[Keys, Values]


def _full(blocks: list[Block], out: Path, *, dim: int = 2, memory_bytes: int = 1 << 20, version: int = 1) -> PartFile:
    return build_full(blocks, out, PartIdentity(version, 0, 1, dim), memory_bytes)


def _overlay(
    parent: Path | None, blocks: list[Block], out: Path, *, deletions: list[Keys] | None = None, base: int = 1
) -> PartFile:
    return build_overlay(
        [] if parent is None else [parent], blocks, out, PartIdentity(2, 0, 1, 2, base), deletions or []
    )


def _content(path: Path) -> dict[int, list[float] | None]:
    """Key to values, None for a tombstone."""
    part = DictionaryPart.open(path)
    part.verify()
    return {
        int(key): None if gone else row.tolist()
        for keys, values, deleted in part.blocks()
        for key, row, gone in zip(keys, values, deleted, strict=True)
    }


def _block(keys: list[int], version: int = 1) -> Block:
    return as_keys(keys), values_for(as_keys(keys), 2, version)


def _as_dict(*blocks: Block) -> dict[int, list[float] | None]:
    return {int(key): row.tolist() for keys, values in blocks for key, row in zip(keys, values, strict=True)}


@given(keys_drawn, keys_drawn)
def test_of_a_repeated_key_the_last_stays(
    tmp_path_factory: pytest.TempPathFactory, first: list[int], second: list[int]
) -> None:
    blocks = [_block(first, 1), _block(second, 2)]

    built = _full(blocks, tmp_path_factory.getbasetemp() / "last.dict")

    assert _content(built.path) == _as_dict(*blocks)
    assert built.records == len(set(first) | set(second))
    assert built.bytes == built.path.stat().st_size
    assert built.sha256 == hashlib.sha256(built.path.read_bytes()).hexdigest()


@given(keys_drawn, st.randoms(use_true_random=False))
def test_the_same_records_give_the_same_bytes_in_any_order_and_memory(
    tmp_path_factory: pytest.TempPathFactory, keys: list[int], random: np.random.Generator
) -> None:
    folder = tmp_path_factory.getbasetemp()
    distinct = list(dict.fromkeys(keys))
    shuffled = list(distinct)
    random.shuffle(shuffled)
    half = len(shuffled) // 2

    whole = _full([_block(distinct)], folder / "whole.dict")
    spilled = _full([_block(shuffled[:half]), _block(shuffled[half:])], folder / "spilled.dict", memory_bytes=1)

    assert whole.path.read_bytes() == spilled.path.read_bytes()


@settings(max_examples=20)
@given(st.integers(1, 400), st.integers(1, 50))
def test_many_sub_parts_and_groups_hold_every_key_once(
    tmp_path_factory: pytest.TempPathFactory, count: int, sub_part_keys: int
) -> None:
    folder = tmp_path_factory.getbasetemp()
    keys = (np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)).tolist()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(perfect_hash, "SUB_PART_KEYS", sub_part_keys)
        whole = _full([_block(keys)], folder / "whole.dict")
        spilled = _full([_block(keys[::2]), _block(keys[1::2])], folder / "spilled.dict", memory_bytes=1)

    assert DictionaryPart.open(whole.path).header.sub_parts == -(-count // sub_part_keys)
    assert _content(whole.path) == _as_dict(_block(keys))
    assert whole.path.read_bytes() == spilled.path.read_bytes()


@given(keys_drawn, keys_drawn, keys_drawn)
def test_an_overlay_is_its_parent_then_its_delta_then_its_deletions(
    tmp_path_factory: pytest.TempPathFactory, parent: list[int], delta: list[int], gone: list[int]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    older = _overlay(None, [_block(parent, 1)], folder / "older.dict")

    newer = _overlay(older.path, [_block(delta, 2)], folder / "newer.dict", deletions=[as_keys(gone)])

    assert _content(newer.path) == {**_as_dict(_block(parent, 1), _block(delta, 2)), **dict.fromkeys(gone)}


@given(keys_drawn, keys_drawn, keys_drawn)
def test_a_merge_answers_as_overlay_over_full_did(
    tmp_path_factory: pytest.TempPathFactory, below: list[int], above: list[int], tombs: list[int]
) -> None:
    folder = tmp_path_factory.getbasetemp()
    full = _full([_block(below, 1)], folder / "below.dict")
    overlay = _overlay(None, [_block(above, 2)], folder / "above.dict", deletions=[as_keys(tombs)])

    merged = merge_full(full.path, overlay.path, folder / "merged.dict", version=2)

    wanted = _as_dict(_block(below, 1), _block(above, 2))
    assert _content(merged.path) == {key: row for key, row in wanted.items() if key not in tombs}
    assert DictionaryPart.open(merged.path).header.version == 2


def test_a_merge_without_overlay_is_the_full_part_of_another_version(tmp_path: Path) -> None:
    full = _full([_block([1, 2, MAX_KEY])], tmp_path / "full.dict")

    merged = merge_full(full.path, None, tmp_path / "merged.dict", version=9)

    assert _content(merged.path) == _content(full.path)


def test_a_key_of_another_partition_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="key 7 belongs to partition 3 of 4, not to 2"):
        build_full([_block([6, 7])], tmp_path / "x.dict", PartIdentity(1, 2, 4, 2))


def test_values_of_another_dim_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="float32"):
        _full([_block([1])], tmp_path / "x.dict", dim=3)


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    full = _full([_block([1])], tmp_path / "full.dict", version=1)
    overlay = _overlay(None, [_block([1])], tmp_path / "overlay.dict", base=1)
    stranger = _full([_block([1])], tmp_path / "stranger.dict", version=5)

    with pytest.raises(ValueError, match="lies over version 1, the new overlay over 3"):
        _overlay(overlay.path, [], tmp_path / "x.dict", base=3)
    with pytest.raises(ValueError, match="lies over version 1, not over 5"):
        merge_full(stranger.path, overlay.path, tmp_path / "x.dict", version=6)
    with pytest.raises(ValueError, match="kind overlay"):
        merge_full(overlay.path, None, tmp_path / "x.dict", version=6)
    with pytest.raises(ValueError, match="kind full"):
        _overlay(full.path, [], tmp_path / "x.dict")


def test_a_build_that_fails_leaves_nothing_and_the_old_part_stays(tmp_path: Path) -> None:
    out = tmp_path / "part.dict"
    before = _full([_block([1, 2])], out).path.read_bytes()

    with pytest.raises(ValueError, match="float32"):
        _full([_block([1]), (as_keys([2]), np.zeros((1, 7), np.float32))], out, memory_bytes=1)

    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["part.dict"]


def test_an_empty_part_can_be_built_and_read(tmp_path: Path) -> None:
    built = _full([], tmp_path / "empty.dict")

    assert built.records == 0
    assert _content(built.path) == {}
