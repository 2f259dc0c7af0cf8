import errno
import mmap
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cube.parts import MAX_KEY, as_keys, values_for, write_parts
from elastic_ctr.cube.dictionary import format as dictionary
from elastic_ctr.cube.dictionary.format import DictionaryDamaged, DictionaryPart, describe


@pytest.fixture(scope="module")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The part with the most kinds of sections: an overlay with a tombstone and the all-ones key."""
    folder = tmp_path_factory.mktemp("overlay")
    keys = as_keys([3, 5, 8, MAX_KEY])
    [paths] = write_parts(folder, keys, overlay_keys=keys, deletions=as_keys([5]), version=7).values()
    assert paths.overlay is not None
    return paths.overlay


def test_a_part_gives_back_what_was_built_into_it(tmp_path: Path) -> None:
    keys = as_keys([0, 1, 2**63, MAX_KEY])

    part = DictionaryPart.open(write_parts(tmp_path, keys, dim=3)[0].full)

    blocks = list(part.blocks())
    found = {int(key): row.tolist() for block in blocks for key, row in zip(block[0], block[1], strict=True)}
    assert found == {int(key): row.tolist() for key, row in zip(keys, values_for(keys, 3), strict=True)}
    assert not any(block[2].any() for block in blocks)


def test_a_part_of_twenty_keys_is_small(tmp_path: Path) -> None:
    path = write_parts(tmp_path, np.arange(20, dtype=np.uint64), dim=9)[0].full

    assert path.stat().st_size < 3 * 4096


def test_a_record_of_dim_9_takes_48_bytes() -> None:
    assert dictionary.stride_for(9) == 48
    assert [dictionary.stride_for(dim) for dim in (1, 2, 3, 16, 17)] == [16, 16, 24, 72, 80]


def test_describe_says_what_a_part_holds(overlay: Path) -> None:
    facts = describe(overlay)

    assert facts["kind"] == "overlay"
    assert (facts["version"], facts["base"], facts["partition"], facts["partitions"]) == (8, 7, 0, 1)
    assert (facts["keys"], facts["tombstones"], facts["dim"]) == (4, 1, 4)
    assert facts["bytes"] == overlay.stat().st_size


@settings(max_examples=300)
@given(st.data())
def test_a_flipped_byte_anywhere_is_found(
    overlay: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = overlay.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    flip = data.draw(st.integers(1, 255))
    damaged = tmp_path_factory.getbasetemp() / "flipped.dict"
    damaged.write_bytes(whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :])

    with pytest.raises(DictionaryDamaged, match=r"is damaged: .*; fetch or build it again"):
        DictionaryPart.open(damaged).verify()


def test_a_flipped_bit_in_each_section_is_found(overlay: Path, tmp_path: Path) -> None:
    whole = overlay.read_bytes()
    header = DictionaryPart.open(overlay).header
    damaged = tmp_path / "damaged.dict"
    for name, section in header.sections.items():
        for at in {section.offset, section.offset + section.length - 1}:
            damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            part = DictionaryPart.open(damaged)

            with pytest.raises(DictionaryDamaged, match=name):
                part.verify()


def test_bytes_between_sections_are_not_free(overlay: Path, tmp_path: Path) -> None:
    whole = bytearray(overlay.read_bytes())
    sections = DictionaryPart.open(overlay).header.sections
    whole[sections["records"].offset - 1] = 1
    damaged = tmp_path / "damaged.dict"
    damaged.write_bytes(whole)

    with pytest.raises(DictionaryDamaged, match="belong to nothing"):
        DictionaryPart.open(damaged).verify()


@given(st.data())
def test_a_part_cut_or_grown_is_refused_when_opened(
    overlay: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = overlay.read_bytes()
    length = data.draw(st.integers(0, len(whole) - 1))
    damaged = tmp_path_factory.getbasetemp() / "cut.dict"

    for content in (whole[:length], whole + bytes(length + 1)):
        damaged.write_bytes(content)
        with pytest.raises(DictionaryDamaged):
            DictionaryPart.open(damaged)


@given(st.binary(max_size=300))
def test_any_other_file_is_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "other.dict"
    path.write_bytes(content.ljust(5000, b"\0"))

    with pytest.raises(DictionaryDamaged, match=r"does not start as|format version"):
        DictionaryPart.open(path)


_HEADER_LIES: dict[str, tuple[dict[str, object], str]] = {
    "dim": ({"dim": 0}, "dim 0"),
    "stride": ({"stride": 12}, "stride of 12"),
    "partition": ({"partition": 4, "partitions": 4}, "partition 4"),
    "slots": ({"slots": 0}, "0 slots|of 0"),
    "keys": ({"keys": 10**6}, "1000000 keys"),
    "presence": ({"presence_bits": 65}, "65 bits"),
    "sections": ({"buckets": 500}, "sections"),
    "length": ({"file_bytes": 5}, "says 5"),
}


@pytest.mark.parametrize(("lie", "reason"), _HEADER_LIES.values(), ids=_HEADER_LIES)
def test_a_header_that_contradicts_itself_is_refused_though_its_checksum_fits(
    overlay: Path, tmp_path: Path, lie: dict[str, object], reason: str
) -> None:
    header = replace(DictionaryPart.open(overlay).header, **lie)  # type: ignore[arg-type]
    damaged = tmp_path / "lying.dict"
    damaged.write_bytes(header.pack() + overlay.read_bytes()[4096:])

    with pytest.raises(DictionaryDamaged, match=reason):
        DictionaryPart.open(damaged)


def test_a_missing_part_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        DictionaryPart.open(tmp_path / "absent.dict")


@pytest.mark.parametrize("advice", [dictionary._POPULATE_READ, 9999], ids=["as it is", "unknown to the kernel"])
def test_a_part_that_is_read_in_at_once_holds_the_same(
    overlay: Path, advice: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dictionary, "_POPULATE_READ", advice)

    part = DictionaryPart.open(overlay, verify=True)

    part.verify()
    assert part.header == DictionaryPart.open(overlay).header


def _says_what_cannot_be_read() -> bool:
    with mmap.mmap(-1, mmap.PAGESIZE) as anything:
        try:
            anything.madvise(dictionary._POPULATE_READ)
        except OSError:
            return False
    return True


@pytest.mark.skipif(not _says_what_cannot_be_read(), reason="Linux before 5.14 ends a process that reads such a page")
@pytest.mark.parametrize("pages", [0, 1, 2])
def test_a_part_that_was_cut_while_it_is_mapped_is_an_os_error_and_no_end_of_the_process(
    tmp_path: Path, pages: int
) -> None:
    paths = write_parts(tmp_path, np.arange(1, 2001, dtype=np.uint64), dim=9, partitions=1)
    part = DictionaryPart.open(paths[0].full)
    os.truncate(part.path, pages * mmap.PAGESIZE)

    with pytest.raises(OSError, match=str(part.path)) as caught:
        part.verify()

    assert caught.value.errno == errno.EFAULT
