from pathlib import Path

import pytest

from elastic_ctr.store.backends import FileStore
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.safeguards import Refusal, read_refusals, refused_below, write_refusal


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path)


def test_a_store_without_refusals_has_none(store: FileStore) -> None:
    assert read_refusals(store) == {}


def test_written_refusals_are_read_in_order_of_versions(store: FileStore) -> None:
    write_refusal(store, Refusal(version=12, reason="later", refused_at=2.0))
    write_refusal(store, Refusal(version=9, reason="damaged file", refused_at=1.0))

    assert list(read_refusals(store).items()) == [(9, "damaged file"), (12, "later")]


def test_the_first_reason_stays(store: FileStore) -> None:
    write_refusal(store, Refusal(version=9, reason="first", refused_at=1.0))
    write_refusal(store, Refusal(version=9, reason="second", refused_at=2.0))

    assert read_refusals(store) == {9: "first"}


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b'{"version": 1e999}', b"\xff\xfe", b"9" * 5000])
def test_a_refusal_with_any_content_still_refuses_its_version(store: FileStore, content: bytes) -> None:
    store.put_bytes(content, layout.refusal(9))

    assert "cannot be read" in read_refusals(store)[9]


def test_files_with_other_names_are_no_refusals(store: FileStore) -> None:
    for name in ("notes.json", "²³.json", "9" * 5000, "7.txt", "-3.json"):
        store.put_bytes(b"{}", f"{layout.REFUSED}/{name[:200]}")

    assert read_refusals(store) == {}


@pytest.mark.parametrize(
    ("refused", "found"), [((), None), ((3,), None), ((4,), 4), ((5, 6), 5), ((7,), 7), ((8,), None)]
)
def test_a_delta_stands_on_what_lies_between_its_base_and_its_parent(
    refused: tuple[int, ...], found: int | None
) -> None:
    assert refused_below(base=4, parent=7, refused=refused) == found
