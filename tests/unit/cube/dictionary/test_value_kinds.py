"""Parts of every kind of values: built, merged, looked up, refused."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cube.parts import MAX_KEY, SPECIAL_KEYS, as_keys, expected, write_parts, write_table
from cube_oracles import look_up
from elastic_ctr.cube.builder.part import PartIdentity, build_full, build_overlay, merge_full
from elastic_ctr.cube.dictionary.format import DictionaryDamaged, DictionaryPart, Keys, Values, describe, stride_for
from elastic_ctr.cube.dictionary.table import PartsDoNotFit, Paths, VersionTable
from elastic_ctr.features.quantiser import encode, quantised
from elastic_ctr.formats.value_kind import VALUE_KINDS, ValueKind
from elastic_ctr.machine_code.compiled import bounds_checked

QUANTISED: tuple[ValueKind, ...] = ("float16", "int8")
# Each is compiled once for each kind, and takes seconds; lookups of 9 are compiled before tests.
DIMS = (9,) if bounds_checked() else (1, 9)
AWKWARD = np.array([0.0, -0.0, 2**-149, -(2**-126), 2**-24, 65504, 65519, -65520, 1e20, -1, 0.0123, 127], np.float32)

some_keys = st.lists(st.one_of(st.sampled_from(SPECIAL_KEYS), st.integers(0, 2**64 - 1)), max_size=60)
kinds = pytest.mark.parametrize("kind", VALUE_KINDS)


def values_of(keys: Keys, dim: int, version: int = 1) -> Values:
    """Values of all magnitudes, of each key and version others."""
    rng = np.random.default_rng([version, dim, *(int(key) % 1000 for key in keys)])
    values = rng.standard_normal((keys.size, dim)) * 10.0 ** rng.integers(-6, 3, (keys.size, 1))
    awkward = rng.random(values.shape) < 0.1
    return np.where(awkward, rng.choice(AWKWARD, values.shape), values).astype(np.float32)


def rows_of(keys: list[int], dim: int, kind: ValueKind, version: int = 1) -> dict[int, Values]:
    """What is answered for each key when they were built as one block."""
    return dict(zip(keys, quantised(values_of(as_keys(keys), dim, version), kind), strict=True))


def block(keys: list[int], dim: int, version: int = 1) -> tuple[Keys, Values]:
    return as_keys(keys), values_of(as_keys(keys), dim, version)


@kinds
@settings(max_examples=40)
@given(data=st.data(), below=some_keys, above=some_keys, gone=some_keys)
def test_a_lookup_answers_what_the_quantiser_says(
    tmp_path_factory: pytest.TempPathFactory, kind: ValueKind, data: st.DataObject, below: list[int], above: list[int],
    gone: list[int],
) -> None:  # fmt: skip
    dim, overlaid = data.draw(st.sampled_from(DIMS), "dim"), data.draw(st.booleans(), "overlaid")
    folder = tmp_path_factory.mktemp("parts")
    full = build_full([block(below, dim)], folder / "full.dict", PartIdentity(1, 0, 1, dim, values=kind)).path
    overlay, known = None, rows_of(below, dim, kind)
    if overlaid:
        identity = PartIdentity(2, 0, 1, dim, 1, kind)
        overlay = build_overlay([], [block(above, dim, 2)], folder / "overlay.dict", identity, [as_keys(gone)]).path
        known = {key: row for key, row in {**known, **rows_of(above, dim, kind, 2)}.items() if key not in gone}
    table = VersionTable.open(2, dim, 1, {0: Paths(full, overlay)}, verify=True)
    asked = as_keys([*below, *above, *gone, *SPECIAL_KEYS, 77])

    values, missing = table.lookup(asked)

    wanted, wanted_missing = expected(asked, known, dim)
    assert values.tobytes() == wanted.tobytes()
    assert missing.tolist() == wanted_missing
    assert [each.tobytes() for each in look_up(table, asked)] == [values.tobytes(), missing.tobytes()]


@kinds
@given(below=some_keys, first=some_keys, second=some_keys, gone=some_keys)
def test_a_merge_has_the_stored_bytes_of_full_part_and_overlays(
    tmp_path_factory: pytest.TempPathFactory, kind: ValueKind, below: list[int], first: list[int], second: list[int],
    gone: list[int],
) -> None:  # fmt: skip
    folder = tmp_path_factory.mktemp("parts")
    identity = PartIdentity(3, 0, 1, 5, 1, kind)
    full = build_full([block(below, 5)], folder / "full.dict", PartIdentity(1, 0, 1, 5, values=kind)).path
    older = build_overlay([], [block(first, 5, 2)], folder / "older.dict", identity).path
    newer = build_overlay([older], [block(second, 5, 3)], folder / "newer.dict", identity, [as_keys(gone)]).path

    merged = DictionaryPart.open(merge_full(full, newer, folder / "merged.dict", 3).path, verify=True)

    found = {
        int(key): row.tobytes()
        for keys, stored, _ in merged.stored_blocks()
        for key, row in zip(keys, stored, strict=True)
    }
    given_ = {1: below, 2: first, 3: second}
    wanted = {
        key: row.tobytes()
        for version, keys in given_.items()
        for key, row in zip(keys, encode(values_of(as_keys(keys), 5, version), kind), strict=True)
    }
    assert found == {key: row for key, row in wanted.items() if key not in gone}
    assert merged.header.values == kind


@kinds
def test_an_overlay_of_one_key_over_one_of_one_key_has_both(tmp_path: Path, kind: ValueKind) -> None:
    # Rows of one by one were joined column by column once.
    identity = PartIdentity(3, 0, 1, 5, 1, kind)
    older = build_overlay([], [block([8], 5, 2)], tmp_path / "older.dict", identity).path

    newer = build_overlay([older], [block([], 5, 3)], tmp_path / "newer.dict", identity, [as_keys([9])]).path

    [(keys, stored, gone)] = DictionaryPart.open(newer).stored_blocks()
    found = {int(key): (row.tobytes(), bool(deleted)) for key, row, deleted in zip(keys, stored, gone, strict=True)}
    assert found == {
        8: (encode(values_of(as_keys([8]), 5, 2), kind).tobytes(), False),
        9: (bytes(stored.shape[1]), True),
    }


@kinds
def test_the_same_records_give_the_same_bytes_in_any_memory(tmp_path: Path, kind: ValueKind) -> None:
    keys = list(range(1, 2000))
    half = as_keys(keys[:900]), values_of(as_keys(keys), 9)[:900]
    rest = as_keys(keys[900:]), values_of(as_keys(keys), 9)[900:]
    identity = PartIdentity(1, 0, 1, 9, values=kind)

    whole = build_full([block(keys, 9)], tmp_path / "whole.dict", identity)
    spilled = build_full([rest, half], tmp_path / "spilled.dict", identity, memory_bytes=1)

    assert whole.path.read_bytes() == spilled.path.read_bytes()


def test_a_record_of_bytes_is_two_fifths_of_one_of_floats_at_dim_17(tmp_path: Path) -> None:
    keys = np.arange(1, 200_001, dtype=np.uint64)

    sizes = {
        kind: write_parts(tmp_path / kind, keys, dim=17, values=kind)[0].full.stat().st_size for kind in VALUE_KINDS
    }

    assert [stride_for(17, kind) for kind in VALUE_KINDS] == [80, 42, 30]
    assert sizes["int8"] <= 0.4 * sizes["float32"]
    assert sizes["float16"] <= 0.55 * sizes["float32"]


def test_a_part_of_an_earlier_release_is_one_of_floats(tmp_path: Path) -> None:
    keys = as_keys([1, 2, MAX_KEY])

    content = write_parts(tmp_path, keys)[0].full.read_bytes()

    # Releases before there were kinds wrote 1 here, and nothing else.
    assert content[20:24] == bytes([1, 0, 0, 0])
    assert describe(tmp_path / "part-00000.dict")["values"] == "float32"


@pytest.mark.parametrize("kind", QUANTISED)
def test_a_part_says_its_kind(tmp_path: Path, kind: ValueKind) -> None:
    paths = write_parts(tmp_path, as_keys([1]), values=kind)[0]

    assert describe(paths.full)["values"] == kind


@pytest.mark.parametrize("code", [0, 4, 2**32 - 1])
def test_a_kind_that_this_program_does_not_know_is_refused_with_the_ones_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    path = write_parts(tmp_path, as_keys([1]))[0].full
    header = DictionaryPart.open(path).header
    monkeypatch.setattr("elastic_ctr.cube.dictionary.format.VALUE_CODES", {"float32": code})
    head = header.pack()
    monkeypatch.undo()
    path.write_bytes(head + path.read_bytes()[4096:])

    with pytest.raises(
        DictionaryDamaged, match=rf"kind of values {code} is unknown.*float32 \(1\), float16 \(2\), int8 \(3\)"
    ):
        DictionaryPart.open(path)


@pytest.mark.parametrize(
    ("kind", "said"), [("int8", "float32"), ("int8", "float16"), ("float16", "float32"), ("float32", "int8")]
)
def test_a_header_that_says_another_kind_than_its_records_have_is_refused(
    tmp_path: Path, kind: ValueKind, said: ValueKind
) -> None:
    path = write_parts(tmp_path, np.arange(1, 50, dtype=np.uint64), dim=17, values=kind)[0].full
    header = DictionaryPart.open(path).header
    wrong = replace(header, values=said, stride=stride_for(17, said))
    path.write_bytes(wrong.pack() + path.read_bytes()[4096:])

    with pytest.raises(DictionaryDamaged, match="its sections do not fit its length"):
        DictionaryPart.open(path)


def test_a_stride_too_short_for_the_kind_is_refused(tmp_path: Path) -> None:
    path = write_parts(tmp_path, as_keys([1]), dim=17, values="int8")[0].full
    wrong = replace(DictionaryPart.open(path).header, values="float16")
    path.write_bytes(wrong.pack() + path.read_bytes()[4096:])

    with pytest.raises(DictionaryDamaged, match="a stride of 30 bytes does not hold records of dim 17 as float16"):
        DictionaryPart.open(path)


def test_parts_of_two_kinds_form_no_version(tmp_path: Path) -> None:
    keys = np.arange(1, 50, dtype=np.uint64)
    floats = write_parts(tmp_path / "floats", keys, partitions=2)
    halves = write_parts(tmp_path / "halves", keys, partitions=2, overlay_keys=keys, values="float16")

    with pytest.raises(PartsDoNotFit, match=r"has its values as float16, other parts of the version as float32"):
        VersionTable.open(1, 4, 2, {0: floats[0], 1: halves[1]})
    with pytest.raises(PartsDoNotFit, match="has its values as float16"):
        VersionTable.open(1, 4, 2, {0: Paths(floats[0].full, halves[0].overlay)})


def test_parts_of_two_kinds_are_not_merged(tmp_path: Path) -> None:
    keys = np.arange(1, 50, dtype=np.uint64)
    halves = write_parts(tmp_path / "halves", keys, overlay_keys=keys, values="float16")[0]
    assert halves.overlay is not None
    floats = write_parts(tmp_path / "floats", keys)[0]

    with pytest.raises(ValueError, match="as float16, and float32 is needed; build it from the published files anew"):
        merge_full(floats.full, halves.overlay, tmp_path / "merged.dict", 3)
    with pytest.raises(ValueError, match="as float16, and int8 is needed"):
        build_overlay([halves.overlay], [], tmp_path / "overlay.dict", PartIdentity(3, 0, 1, 4, 1, "int8"))


def test_a_table_without_parts_can_be_asked(tmp_path: Path) -> None:
    assert VersionTable(1, 4, 2, {}).values == "float32"
    assert write_table(tmp_path, as_keys([1]), values="int8").values == "int8"
