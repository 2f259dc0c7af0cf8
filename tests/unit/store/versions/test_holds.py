"""Publishing holds in the store."""

from pathlib import Path

import pytest

from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import Store, open_store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.safeguards import Hold, is_gone, is_resumed, newest_hold, write_hold, write_resumption


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(StoreConfig(url=f"file://{tmp_path}"))


def hold(number: int, suspects: tuple[int, int] | None = (5, 7)) -> Hold:
    return Hold(number=number, suspects=suspects, reason=f"hold {number}", held_at=1.0)


def test_the_newest_hold_that_is_not_known_is_found(store: Store) -> None:
    assert newest_hold(store, 0) is None

    write_hold(store, hold(3))
    write_hold(store, hold(12))

    assert newest_hold(store, 0) == hold(12)
    assert newest_hold(store, 11) == hold(12)
    assert newest_hold(store, 12) is None


def test_a_hold_that_is_written_again_keeps_its_first_content(store: Store) -> None:
    write_hold(store, hold(3))
    write_hold(store, hold(3, None))

    assert newest_hold(store, 0) == hold(3)


def test_only_the_hold_that_was_resumed_counts_as_resumed(store: Store) -> None:
    write_hold(store, hold(3))
    write_resumption(store, 3)
    write_resumption(store, 3)
    write_hold(store, hold(4))

    assert is_resumed(store, 3)
    assert not is_resumed(store, 4)


def test_a_hold_that_cannot_be_read_holds_and_suspects_no_version(store: Store) -> None:
    store.put_bytes(b'{"number": "3"', layout.hold(3))

    found = newest_hold(store, 0)

    assert found is not None
    assert (found.number, found.suspects) == (3, None)
    assert found.reason.startswith(f"{layout.hold(3)} cannot be read (")
    assert found.reason.endswith("delete it, or run `elastic-ctr rollback --resume`, to go on")
    assert not is_gone(store, found)
    store.delete(layout.hold(3))
    assert is_gone(store, found)
    assert not is_gone(store, hold(3))


@pytest.mark.parametrize(("version", "suspected"), [(4, False), (5, True), (7, True), (8, False)])
def test_suspects_are_the_versions_from_the_oldest_to_the_newest(version: int, suspected: bool) -> None:
    assert hold(1).suspects_version(version) is suspected
    assert not hold(1, None).suspects_version(version)
