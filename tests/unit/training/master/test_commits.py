from pathlib import Path

from elastic_ctr.store.versions.published_files import read_checkpoint
from training.master.world import data_of, world


def test_a_checkpoint_names_the_version_that_the_next_delta_changes(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(end="20200401/02"))

    one.finish()

    versions = [v["id"] for v in one.ledger.saves.versions()]
    follows = [read_checkpoint(one.store, row["name"]).follows_version for row in one.ledger.saves.checkpoints()]
    # The base's own, then the one taken just before a delta; older ones are deleted.
    assert follows == [versions[0], versions[1]]


def test_a_recovery_while_a_checkpoint_is_committed_wins(tmp_path: Path) -> None:
    one = world(tmp_path)
    one.until(lambda: len(one.ledger.saves.checkpoints()) == 1)
    one.until(lambda: (save := one.ledger.saves.of(2)) is not None and save.stage == "written")
    put_bytes = one.store.put_bytes

    def lose_a_pserver(data: bytes, path: str, *, overwrite: bool = False) -> None:
        put_bytes(data, path, overwrite=overwrite)
        if path.startswith("checkpoints/") and one.coordinator.generation == 1:
            one.pservers[0].restart()
            one.pservers[0].sync()

    one.store.put_bytes = lose_a_pserver  # type: ignore[method-assign]
    one.finish()

    assert one.coordinator.generation == 2
    assert set(one.trained().values()) == {1}


def test_a_recovery_between_a_base_and_its_checkpoint_leaves_one_story(tmp_path: Path) -> None:
    one = world(tmp_path, data=data_of(end="20200401/02"))
    put_bytes = one.store.put_bytes

    def lose_a_pserver(data: bytes, path: str, *, overwrite: bool = False) -> None:
        put_bytes(data, path, overwrite=overwrite)
        if path.startswith("checkpoints/") and one.coordinator.generation == 1:
            one.pservers[0].restart()
            one.pservers[0].sync()

    one.store.put_bytes = lose_a_pserver  # type: ignore[method-assign]
    one.finish()

    versions = {v["id"]: v for v in one.ledger.saves.versions() if v["state"] == "published"}
    for row in one.ledger.saves.checkpoints():
        assert row["follows"] in versions
    assert all(v["parent"] in versions for v in versions.values() if v["kind"] == "delta")
    assert set(one.trained().values()) == {1}
