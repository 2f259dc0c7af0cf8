import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.donefile import (
    Announcement,
    announce,
    announcement_of,
    parse_donefile,
    read_donefile,
)
from elastic_ctr.store.versions.manifest import VersionManifest


def manifest(version: int, parent: int | None = None, base: int | None = None) -> VersionManifest:
    return VersionManifest(
        version=version, kind="base" if parent is None else "delta", base=version if base is None else base,
        parent=parent, pass_id="p", event_time_max=0, created_at=0.0, partitions=4, dim=2, keys=0, slots=(),
        sparse_dim=None, network="n", cube_files=(), model_files=(), samples=0, auc_live=None, auc_published=None,
    )  # fmt: skip


IDS = st.integers(1, 10**18 - 1)
LINES = st.lists(st.builds(Announcement, id=IDS, key=IDS, input=st.text()))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["id", "key", "input", "x"]), inner),
)


@given(LINES)
def test_a_written_donefile_is_read_again(lines: list[Announcement]) -> None:
    text = "\n".join(line.to_line() for line in lines)

    assert parse_donefile(text.encode(), "d") == (tuple(lines), ())


def test_ids_may_be_strings_and_other_fields_are_somebody_elses() -> None:
    text = b'{"id": "5", "key": "4", "input": "/x", "monitor_data": ""}\r\n\n'

    assert parse_donefile(text, "d") == ((Announcement(id=5, key=4, input="/x"),), ())


GOOD = Announcement(id=1, key=1, input="/x")


@pytest.mark.parametrize(
    "line",
    [
        b"{", b"[]", b"7", b'{"id": 1}', b'{"id": "x", "key": 1, "input": ""}', b"\x00", b"\xff\xfe", b"1e999",
        b'{"id": 1e999, "key": 1, "input": ""}', b"[" * 100_000, b'{"id": ' + b"9" * 5000 + b', "key": 1, "input": ""}',
        b'{"id": -1, "key": 1, "input": ""}', b'{"id": 1, "key": 1, "input": "\\ud800"}', b" " * 70_000 + b"{}",
    ],
)  # fmt: skip
def test_a_damaged_line_is_named_with_the_way_out_and_the_other_lines_hold(line: bytes) -> None:
    good = GOOD.to_line().encode()

    lines, problems = parse_donefile(good + b"\n" + line + b"\n" + good, "d")

    assert lines == (GOOD, GOOD)
    assert len(problems) == 1
    assert "d line 2 is not a JSON object" in problems[0]
    assert "mend or remove the line" in problems[0]


@given(LINES, st.binary() | JSON.map(lambda value: json.dumps(value).encode()), LINES)
def test_any_bytes_between_good_lines_leave_them_readable(
    before: list[Announcement], middle: bytes, after: list[Announcement]
) -> None:
    pieces = [*(line.to_line().encode() for line in before), middle, *(line.to_line().encode() for line in after)]

    lines, problems = parse_donefile(b"\n".join(pieces), "d")

    assert lines[: len(before)] == tuple(before)
    assert lines[len(lines) - len(after) :] == tuple(after)
    "".join(problems).encode()


def test_a_file_of_garbage_is_few_sentences() -> None:
    lines, problems = parse_donefile(b"garbage\n" * 1000, "d")

    assert lines == ()
    assert len(problems) == 4
    assert problems[-1] == "d has 997 more such lines"


def test_a_missing_donefile_means_nothing_new(tmp_path: Path) -> None:
    assert read_donefile(FileStore(tmp_path), layout.BASE_DONEFILE) == ((), ())


def test_the_key_of_a_patch_is_its_base_and_of_a_base_its_own() -> None:
    assert announcement_of(manifest(4)) == Announcement(id=4, key=4, input="/output/ctr_cube/4/base")
    assert announcement_of(manifest(6, 5, 4)) == Announcement(id=6, key=4, input="/output/ctr_cube/6/delta")


def test_announcing_writes_a_line_for_every_manifest_and_drops_the_others(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put_bytes(Announcement(id=1, key=1, input="/gone").to_line().encode(), layout.BASE_DONEFILE)
    for each in (manifest(4), manifest(5, 4, 4), manifest(6, 5, 4)):
        store.put_bytes(each.to_json(), layout.version_manifest(each.version))

    announce(store)
    announce(store)

    assert [line.id for line in read_donefile(store, layout.BASE_DONEFILE).lines] == [4]
    assert [line.id for line in read_donefile(store, layout.PATCH_DONEFILE).lines] == [5, 6]


def test_a_version_whose_manifest_cannot_be_read_keeps_its_line_and_keeps_no_other_from_being_announced(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = FileStore(tmp_path)
    for each in (manifest(4), manifest(5, 4, 4)):
        store.put_bytes(each.to_json(), layout.version_manifest(each.version))
    announce(store)
    for damaged in (4, 5, 7):
        store.put_bytes(b'{"version": 1, "of": "a newer release"}', layout.version_manifest(damaged), overwrite=True)
    store.put_bytes(manifest(6).to_json(), layout.version_manifest(6))

    announce(store)

    assert [line.id for line in read_donefile(store, layout.BASE_DONEFILE).lines] == [4, 6]
    assert [line.id for line in read_donefile(store, layout.PATCH_DONEFILE).lines] == [5]
    assert "version 7 is announced as before" in caplog.text


def test_a_donefile_that_cannot_be_read_is_written_anew(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    store.put_bytes(b"{", layout.BASE_DONEFILE)
    store.put_bytes(b"{", layout.version_manifest(4))
    store.put_bytes(manifest(5).to_json(), layout.version_manifest(5))

    announce(store)

    assert [line.id for line in read_donefile(store, layout.BASE_DONEFILE).lines] == [5]


def test_without_a_version_no_donefile_is_written(tmp_path: Path) -> None:
    announce(FileStore(tmp_path))

    assert not FileStore(tmp_path).exists(layout.DONEFILES)
