"""States, views, dictionaries and holds of the tests of the rules."""

from typing import Any

from elastic_ctr.config.cube_settings import CubeTransferConfig
from elastic_ctr.cube.release import Holder, Placement
from elastic_ctr.cube.transfer.state import ReleaseState, View
from elastic_ctr.store.versions.manifest import DictionaryManifest
from elastic_ctr.store.versions.safeguards import Hold

RULES = CubeTransferConfig(min_ready_replicas=1, validation_timeout_seconds=120)
ALL = Holder(partitions=(0, 1, 2, 3), shard=0)


def dictionary(version: int, dim: int = 2) -> DictionaryManifest:
    return DictionaryManifest(
        version=version, kind="full", full_version=version, base=version, parent=None, partitions=4, dim=dim, keys=0,
        files=(),
    )  # fmt: skip


def hold(*suspects: int, number: int = 1) -> Hold:
    return Hold(
        number=number, suspects=(suspects[0], suspects[-1]) if suspects else None, reason="AUC fell", held_at=1.0
    )


def view(*built: int, held: tuple[int, ...] = (), **more: Any) -> View:
    fields: dict[str, Any] = {
        "now": 1000.0,
        "built": {v: dictionary(v) for v in built},
        "holders": {v: {"a:1": ALL} for v in held},
        "readers": [],
        "damaged": {},
        "agents": [],
        "placement": Placement(shards=1, up=(0,)),
        **more,
    }
    return View(**fields)


def live(version: int, **more: Any) -> ReleaseState:
    return ReleaseState(generation=1, live=version, was_live=(version,), **more)
