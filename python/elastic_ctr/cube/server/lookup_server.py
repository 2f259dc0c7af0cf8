"""The lookup port of a cube pod: its worker processes, the parts that they answer from, and the figures about them."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from elastic_ctr.config.cube_settings import CubePodConfig
from elastic_ctr.cube.agent.lookup_parts import LoadedParts, NothingServes, PartsRefused
from elastic_ctr.cube.dictionary.format import DictionaryDamaged, DictionaryPart
from elastic_ctr.cube.dictionary.table import PartsDoNotFit, Paths, check_fit
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.server.holdings import Assignments, DoesNotFit
from elastic_ctr.cube.server.lookup_counters import Activity
from elastic_ctr.cube.server.lookup_workers import NoWorker, WorkerRefused, Workers
from elastic_ctr.cube.server.scrubber import Scrubber
from elastic_ctr.runtime.lifecycle import reserve, run_until_one_ends
from elastic_ctr.runtime.metrics import Metrics

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0


_METRICS = {
    "requests": (counters.REQUESTS, "Lookup requests received."),
    "keys": (counters.KEYS, "Keys asked for."),
    "missing_keys": (counters.MISSING, "Keys answered as missing."),
    "not_held_replies": (counters.NOT_HELD, "Requests for a version or partition that is not held here."),
    "bad_requests": (counters.BAD_REQUESTS, "Requests refused for their form."),
    "keep_alives": (counters.KEEP_ALIVES, "Keep-alives received."),
    "received_bytes": (counters.BYTES_IN, "Bytes received on the lookup port."),
    "sent_bytes": (counters.BYTES_OUT, "Bytes sent on the lookup port."),
    "accepted_connections": (counters.ACCEPTED, "Connections accepted on the lookup port."),
}


class LookupServer:
    """Answers lookups on host. The port is bound in the constructor, and free again after `close`.

    A partition whose file is found damaged later is no longer answered, until it is loaded again. Raises PortInUse, OSError.
    """

    def __init__(self, cube: CubePodConfig, host: str = "127.0.0.1") -> None:
        self._reserved = reserve(host, cube.port)
        self.port: int = self._reserved.getsockname()[1]
        self._address = f"{host}:{self.port}"
        self._max_keys = cube.max_keys
        self._workers = Workers(host, self.port, cube)
        self._activity = Activity(self._workers.counts)
        self._scrubber = Scrubber(cube.scrub_megabytes_per_second, self._on_damage)
        self.metrics = Metrics("cube")
        self._add_metrics()
        self._partitions = self.metrics.gauge("loaded_partitions", "Partitions loaded, by version.", ("version",))

    def close(self) -> None:
        self._reserved.close()

    async def run(self) -> None:
        """Keep the workers until cancelled. Raises CannotWork."""
        self._loop = asyncio.get_running_loop()
        self._workers.pool.start()
        self._scrubber.start()
        try:
            await run_until_one_ends(self._look_often(), self._workers.pool.kept())
        finally:
            self._scrubber.stop()
            await self._workers.stop()

    async def _look_often(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            self._look()

    def _look(self) -> None:
        assigned = self._workers.assigned
        self._scrubber.keep_only(assigned.files)
        self._activity.look({version: own.place for version, own in assigned.versions.items()})
        self._partitions.clear()
        for version, numbers in assigned.by_version().items():
            self._partitions.labels(version).set(len(numbers))

    def _on_damage(self, path: Path, sentence: str) -> None:
        asyncio.run_coroutine_threadsafe(self._drop(path, sentence), self._loop)

    async def _drop(self, path: Path, sentence: str) -> None:
        try:
            await self._workers.drop({path: sentence})
        except WorkerRefused:
            _log.exception("%s is still answered; the next round looks at it again", path)
        self._look()

    @property
    def ready(self) -> bool:
        """True if every worker answers lookups."""
        return self._workers.ready

    def _add_metrics(self) -> None:
        metrics, workers = self.metrics, self._workers
        for name, (column, text) in _METRICS.items():
            metrics.counter_of(name, text, partial(self._sum, column))
        metrics.counter_of("worker_restarts", "Workers started again after they ended.", lambda: workers.pool.restarts)
        scrubbed = "Bytes of mapped parts verified again in the background."
        metrics.counter_of("scrubbed_bytes", scrubbed, lambda: self._scrubber.verified_bytes)
        lost = "Partitions no longer answered because a file was found damaged."
        metrics.counter_of("damaged_partitions", lost, lambda: workers.damaged_parts)
        gauges: dict[str, tuple[str, Callable[[], float]]] = {
            "connections": ("Open connections on the lookup port.", partial(self._sum, counters.CONNECTIONS)),
            "lookups_in_flight": ("Lookups of the rounds being answered.", partial(self._sum, counters.IN_FLIGHT)),
            "workers_ready": ("Workers that answer lookups.", lambda: len(workers.pids())),
            "draining": ("1 while readers are told to ask another holder.", lambda: float(workers.draining)),
        }
        for name, (text, value) in gauges.items():
            metrics.gauge(name, text).set_function(value)

    def _sum(self, column: int) -> int:
        return int(self._workers.counts[:, column].sum())

    def loaded(self) -> LoadedParts:
        self._look()
        damaged: dict[int, dict[int, str]] = {}
        for (version, number), sentence in sorted(self._workers.damaged.items()):
            damaged.setdefault(version, {})[number] = sentence
        return LoadedParts(
            versions={version: frozenset(own.parts) for version, own in self._workers.assigned.versions.items()},
            last_asked_seconds=self._activity.last_asked_seconds(),
            last_lookup_seconds=self._activity.last_lookup_seconds(),
            draining=self._workers.draining,
            damaged=damaged,
        )

    def status(self) -> dict[str, Any]:
        loaded = self.loaded()
        shapes = {(own.dim, own.partitions) for own in self._workers.assigned.versions.values()}
        dim, partitions = next(iter(shapes), (None, None))
        return {
            "address": self._address,
            "maxKeys": self._max_keys,
            "versions": self._workers.assigned.by_version(),
            "damaged": loaded.damaged,
            "lastAskedSeconds": loaded.last_asked_seconds,
            "draining": loaded.draining,
            "lastLookupSeconds": loaded.last_lookup_seconds,
            "ready": self.ready,
            "scrub": self._scrubber.status(),
            "dim": dim,
            "partitions": partitions,
            "workers": self._workers.pids(),
            "workerRestarts": self._workers.pool.restarts,
            "connections": self._sum(counters.CONNECTIONS),
            **{name: self._sum(column) for name, (column, _) in _METRICS.items() if "_" not in name},
        }

    async def load(self, version: int, dim: int, partitions: int, parts: Mapping[int, Paths]) -> None:
        """Order every worker to verify and load the files. Raises PartsRefused."""

        def rule(assigned: Assignments) -> Assignments:
            return assigned.loaded(version, dim, partitions, parts)

        with _refusing():
            # Refuse parts that do not fit before the files are read.
            rule(self._workers.assigned)
            mapped = await asyncio.to_thread(map_parts, partitions, dim, parts, self._scrubber.parts)
            held = self._workers.assigned.files
            # Read one part after the other, so that a stopping server waits for one part at most.
            for part in mapped:
                if part.path not in held:
                    await asyncio.to_thread(part.read_in)
            await self._workers.change(rule)
        self._scrubber.watch(mapped)
        self._forget_damage(version, parts)

    async def unload(self, version: int, partitions: Collection[int]) -> None:
        """Raises PartsRefused."""
        with _refusing():
            await self._workers.change(lambda assigned: assigned.unloaded(version, partitions))
        self._forget_damage(version, partitions)

    async def drain(self, *, draining: bool) -> None:
        """Raises PartsRefused."""
        with _refusing():
            await self._workers.drain(draining=draining)

    def _forget_damage(self, version: int, partitions: Collection[int]) -> None:
        for number in partitions:
            self._workers.damaged.pop((version, number), None)
        self._look()


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except NoWorker as refused:
        raise NothingServes(str(refused)) from refused
    except (DoesNotFit, WorkerRefused, DictionaryDamaged, PartsDoNotFit, OSError) as refused:
        raise PartsRefused(str(refused)) from refused


def map_parts(
    partitions: int, dim: int, paths: Mapping[int, Paths], mapped: Mapping[Path, DictionaryPart]
) -> list[DictionaryPart]:
    """Map the files without verifying them; a part of `mapped` whose file is still the same is reused. Raises
    DictionaryDamaged, PartsDoNotFit, OSError.
    """

    def opened_once(path: Path) -> DictionaryPart:
        known = mapped.get(path)
        return known if known is not None and path.stat().st_ino == known.inode else DictionaryPart.open(path)

    # Each file once, because an overlay may be one file of all partitions.
    parts = {path: opened_once(path) for path in {path for files in paths.values() for path in files.files()}}
    opened = {number: files.parts(parts.__getitem__) for number, files in paths.items()}
    check_fit(partitions, dim, opened)
    return list(parts.values())
