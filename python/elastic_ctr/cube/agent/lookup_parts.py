"""The lookups of a pod, as its agent uses them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from elastic_ctr.cube.dictionary.table import Paths


class PartsRefused(RuntimeError):
    """An order was not carried out, and nothing has changed. The text has the reason."""


class NothingServes(PartsRefused):
    """No worker answers lookups, whatever the parts are."""


@dataclass(frozen=True)
class LoadedParts:
    """The loaded partitions by version, and the seconds since their last lookups (None: never).

    `damaged`: version -> partition -> sentence, for partitions that are not answered until they are loaded again.
    `draining` is true from the order on, before every worker has carried it out.
    """

    versions: dict[int, frozenset[int]]
    last_asked_seconds: dict[int, float | None]
    last_lookup_seconds: float | None
    draining: bool
    damaged: dict[int, dict[int, str]]


class LookupParts(Protocol):
    """Orders return once all workers have carried them out. Raises PartsRefused."""

    def loaded(self) -> LoadedParts: ...

    async def load(self, version: int, dim: int, partitions: int, parts: Mapping[int, Paths]) -> None: ...

    async def unload(self, version: int, partitions: Collection[int]) -> None: ...

    async def drain(self, *, draining: bool) -> None: ...
