"""The asynchronous reader of cube: any keys of a version from the listed holders. Concurrent lookups of a version share
frames. A slow holder is hedged, and a failed one replaced by another holder of the partition; draining holders come
last. All values of an answer are of the requested version.
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.cube.client.connection import CubeConnection, CubeUnavailable, LookupAttempt, VersionNotHeld, as_keys
from elastic_ctr.cube.wire import Flags, MessageKind, Status, Values
from elastic_ctr.formats.keys import PADDING_KEY, Keys, partitions_of
from elastic_ctr.runtime.growing_pause import growing_pause

__all__ = ["ClientStats", "CubeClient", "CubeUnavailable", "VersionNotHeld"]

_NOT_HELD = frozenset({Status.VERSION_NOT_HELD, Status.PARTITION_NOT_HELD})
_NO_KEYS = np.zeros(0, np.uint64)


@dataclass
class ClientStats:
    """Counts since the client was made."""

    hedged: int = 0
    retried: int = 0
    timeouts: int = 0


class _Routes(NamedTuple):
    """The addresses of each group of partitions with the same holders; number_of[partition] is the group, -1 without
    holders. `alike`: all partitions have the same holders.
    """

    addresses: list[tuple[str, ...]]
    number_of: NDArray[np.int64]
    alike: bool

    @classmethod
    def of(cls, holders: Mapping[str, Sequence[int]], partitions: int) -> "_Routes":
        by_partition: dict[int, list[str]] = {}
        for address, theirs in sorted(holders.items()):
            for partition in theirs:
                by_partition.setdefault(int(partition), []).append(address)
        numbers: dict[tuple[str, ...], int] = {}
        number_of = np.full(partitions, -1, np.int64)
        for partition, addresses in by_partition.items():
            if partition < partitions:
                number_of[partition] = numbers.setdefault(tuple(addresses), len(numbers))
        return cls(list(numbers), number_of, alike=len(numbers) == 1 and bool((number_of == 0).all()))


class CubeClient:
    """Lookups over asyncio; one per event loop.

    After timeout_ms a first attempt is given up; after hedge_ms (None: never) a second holder gets the request too,
    unless it drains. Up to `retries` attempts follow the first. After these, holders that answered recently are retried
    with growing pauses until deadline_ms, over a new connection once this one has owed an answer for half of that.
    After a status "not held", holders that have not answered for deadline_ms get no further attempt.
    """

    def __init__(
        self,
        dim: int,
        *,
        partitions: int,
        timeout_ms: float = 200,
        hedge_ms: float | None = 20,
        retries: int = 2,
        deadline_ms: float = 5000,
    ) -> None:
        self.dim = dim
        self.partitions = partitions
        self.stats = ClientStats()
        self._timeout = timeout_ms / 1000
        self._hedge = None if hedge_ms is None else hedge_ms / 1000
        self._retries = retries
        self._deadline = deadline_ms / 1000
        # Timeout of the longest attempt: a lookup lasts for its deadline and one attempt more.
        self._longest_timeout = max(self._timeout * 2**retries, self._deadline)
        self._failing_since: dict[str, float] = {}
        self._versions: dict[int, _Routes] = {}
        self._holders: dict[int, dict[str, Sequence[int]]] = {}
        self._draining: frozenset[str] = frozenset()
        self._connections: dict[str, CubeConnection] = {}
        # Connections to addresses that are no longer listed; each stays open while a lookup waits for its answers.
        self._leaving: set[CubeConnection] = set()
        self._closing: asyncio.TimerHandle | None = None
        self._closed = False

    def set_holders(self, holders: Mapping[int, Mapping[str, Sequence[int]]], draining: Collection[str] = ()) -> None:
        """Set the holders: version to "host:port" to partitions. If no holder is listed for a partition, the client
        keeps its last known holder, which may only have been too busy to report. Lookups under way continue. Call this
        in the event loop of the lookups.
        """
        changed = {
            version: _merge_with_last_known_holders(theirs, self._holders.get(version, {}))
            for version, theirs in holders.items()
        }
        self._versions = {
            version: self._versions[version]
            if self._holders.get(version) == theirs
            else _Routes.of(theirs, self.partitions)
            for version, theirs in changed.items()
        }
        self._holders = changed
        self._draining = frozenset(draining)
        known = {address for theirs in changed.values() for address in theirs}
        # A holder that is listed again has reported again: its earlier failures do not count.
        self._failing_since = {address: since for address, since in self._failing_since.items() if address in known}
        for address in [address for address in self._connections if address not in known]:
            leaver = self._connections.pop(address)
            leaver.named = False
            self._leaving.add(leaver)
        # Connect before the first request: this holder may soon be the only one.
        for address in known:
            connection = self._connection(address)
            connection.named = True
            connection.prepare()
        self._close_left()

    async def lookup(self, version: int, keys: Keys) -> tuple[Values, Flags]:
        """Keys u64[n] to (values f32[n, dim], missing bool[n]), all of that version.

        Missing keys and the padding key 0 are zeros; only the former are marked. Raises VersionNotHeld if a holder
        answers so or a needed partition has no holder, CubeUnavailable if no holder answers, ValueError.
        """
        keys = as_keys(keys)
        padding = keys == np.uint64(PADDING_KEY)
        if not padding.any():
            return await self._with_retries(version, keys)
        values = np.zeros((keys.size, self.dim), np.float32)
        missing = np.zeros(keys.size, np.bool_)
        real = np.flatnonzero(~padding)
        values[real], missing[real] = await self._with_retries(version, keys[real])
        return values, missing

    async def keep_alive(self, versions: Iterable[int]) -> dict[int, set[str]]:
        """Send every holder of these versions a keep-alive: they are still read. Return the confirming addresses by
        version; never raises.
        """
        confirmed: dict[int, set[str]] = {version: set() for version in versions}

        async def confirm(version: int, address: str) -> None:
            answered = asyncio.Event()
            attempt = LookupAttempt(MessageKind.KEEP_ALIVE, version, _NO_KEYS, self.dim, lambda _: answered.set())
            self._put(attempt, address, self._timeout)
            await answered.wait()
            if attempt.status == Status.OK:
                confirmed[version].add(address)

        await asyncio.gather(
            *(confirm(version, address) for version in confirmed for address in self._holders.get(version, ()))
        )
        return confirmed

    async def close(self) -> None:
        self._closed = True
        if self._closing is not None:
            self._closing.cancel()
        for connection in [*self._connections.values(), *self._leaving]:
            connection.close()
        self._connections.clear()
        self._leaving.clear()
        # Aborted transports close their sockets in the next turn of the event loop.
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def _with_retries(self, version: int, keys: Keys) -> tuple[Values, Flags]:
        """Look up, and look up again if other holders were listed while the requests failed."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._deadline
        while True:
            routes = self._versions.get(version)
            try:
                return await self._lookup(version, keys)
            except (CubeUnavailable, VersionNotHeld):
                if self._versions.get(version) is routes or loop.time() >= ends:
                    raise

    async def _lookup(self, version: int, keys: Keys) -> tuple[Values, Flags]:
        if self._closed:
            raise CubeUnavailable("this cube client is closed")
        routes = self._versions.get(version)
        if routes is None or not routes.addresses:
            raise VersionNotHeld(version, "no holder of it is known")
        if keys.size == 0:
            return np.zeros((0, self.dim), np.float32), np.zeros(0, np.bool_)
        if routes.alike:
            return await self._ask(version, routes.addresses[0], keys)
        partitions = partitions_of(keys, self.partitions).astype(np.int64)
        numbers = routes.number_of[partitions]
        if (numbers < 0).any():
            partition = int(partitions[np.argmin(numbers)])
            raise VersionNotHeld(version, f"no holder of its partition {partition} is known")
        first = int(numbers[0])
        if (numbers == first).all():
            return await self._ask(version, routes.addresses[first], keys)
        values = np.empty((keys.size, self.dim), np.float32)
        missing = np.empty(keys.size, np.bool_)
        places = [np.flatnonzero(numbers == number) for number in np.unique(numbers)]
        answers = await asyncio.gather(
            *(self._ask(version, routes.addresses[numbers[at[0]]], keys[at]) for at in places), return_exceptions=True
        )
        # Prefer VersionNotHeld to other errors, because the caller can handle it.
        if failures := [answer for answer in answers if isinstance(answer, BaseException)]:
            raise next((failure for failure in failures if isinstance(failure, VersionNotHeld)), failures[0])
        for at, answer in zip(places, answers, strict=True):
            assert not isinstance(answer, BaseException)
            values[at], missing[at] = answer
        return values, missing

    async def _ask(self, version: int, addresses: tuple[str, ...], keys: Keys) -> tuple[Values, Flags]:
        return await _Request(self, version, keys, self._ordered(addresses)).answer()

    def _ordered(self, addresses: tuple[str, ...]) -> list[str]:
        """Sort by preference: trusted, not draining, connected, then by the connection's rank."""
        if len(addresses) == 1:
            return list(addresses)

        def reluctance(address: str) -> tuple[bool, bool, bool, float]:
            connection = self._connection(address)
            return (
                not connection.trusted,
                self._drains(address),
                not connection.greeted,
                # Always the same order, so that concurrent lookups share frames.
                connection.rank,
            )

        return sorted(addresses, key=reluctance)

    def _drains(self, address: str) -> bool:
        return address in self._draining or self._connection(address).draining

    def _connection(self, address: str) -> CubeConnection:
        connection = self._connections.get(address)
        if connection is None:
            connection = CubeConnection(address, self.dim, self.partitions, self._timeout, self._deadline)
            self._connections[address] = connection
        return connection

    def _put(self, attempt: LookupAttempt, address: str, timeout: float) -> None:
        if self._closed:
            # An attempt would open a connection that is never closed.
            attempt.failed("is not asked by a closed client")
            return
        connection = self._connection(address)
        attempt.timer = asyncio.get_running_loop().call_later(timeout, self._time_out, attempt, connection, timeout)
        connection.ask(attempt)

    def _time_out(self, attempt: LookupAttempt, connection: CubeConnection, timeout: float) -> None:
        self.stats.timeouts += 1
        attempt.failed(f"no reply within {timeout * 1000:.0f} ms")
        connection.timed_out()

    def _close_left(self) -> None:
        loop = asyncio.get_running_loop()
        if self._closing is not None:
            self._closing.cancel()
        # This ends, because no attempt outlives its timeout.
        for connection in [each for each in self._leaving if not each.awaited]:
            self._leaving.discard(connection)
            connection.close("is named as a holder no more")
        self._closing = loop.call_later(self._timeout, self._close_left) if self._leaving else None


def _merge_with_last_known_holders(
    named: Mapping[str, Sequence[int]], before: Mapping[str, Sequence[int]]
) -> dict[str, Sequence[int]]:
    """The listed holders, and the last known ones of partitions for which none is listed."""
    covered = {partition for partitions in named.values() for partition in partitions}
    found = dict(named)
    for address, partitions in before.items():
        if lost := [partition for partition in partitions if partition not in covered]:
            found[address] = sorted({*found.get(address, ()), *lost})
    return found


_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 0.5


class _Request:
    """One request for keys of the same holders: sent to one of them and, if needed, to the others."""

    def __init__(self, client: CubeClient, version: int, keys: Keys, addresses: list[str]) -> None:
        self._client = client
        self._version = version
        self._keys = keys
        # Attempts by address, the best address first; after a "not held" only addresses that may still answer.
        self._asked: dict[str, list[LookupAttempt]] = {address: [] for address in addresses}
        self._loop = asyncio.get_running_loop()
        self._future: asyncio.Future[tuple[Values, Flags]] = self._loop.create_future()
        self._began = self._loop.time()
        self._routes = client._versions.get(version)  # noqa: SLF001 - one thing in two classes
        self._attempts: list[LookupAttempt] = []
        self._again: asyncio.TimerHandle | None = None
        # The last failure of each address.
        self._reasons: dict[str, str] = {}
        self._not_held = False
        self._hedge: asyncio.TimerHandle | None = None

    async def answer(self) -> tuple[Values, Flags]:
        self._try()
        hedge = self._client._hedge  # noqa: SLF001 - one thing in two classes
        if hedge is not None and len(self._asked) > 1:
            self._hedge = self._loop.call_later(hedge, self._try_another_too)
        try:
            return await self._future
        finally:
            for planned in (self._hedge, self._again):
                if planned is not None:
                    planned.cancel()
            for attempt in self._attempts:
                attempt.give_up()

    def _next_address(self) -> str:
        return min(self._asked, key=lambda address: len(self._asked[address]))

    def _is_asked(self, address: str) -> bool:
        return any(attempt.open for attempt in self._asked[address])

    def _may_answer(self, address: str) -> bool:
        client = self._client
        recently = client._connection(address).answered_at > self._began - client._deadline  # noqa: SLF001
        return not self._asked[address] or self._is_asked(address) or recently

    def _try(self) -> None:
        client = self._client
        address = self._next_address()
        attempt = LookupAttempt(
            MessageKind.LOOKUP, self._version, self._keys, client.dim, lambda done: self._done(done, address)
        )
        # The timeout doubles with each attempt at an address, because a busy server must not get more work.
        timeout = client._timeout * 2 ** len(self._asked[address])  # noqa: SLF001
        self._asked[address].append(attempt)
        self._attempts.append(attempt)
        client._put(attempt, address, min(timeout, client._longest_timeout))  # noqa: SLF001

    def _try_another_too(self) -> None:
        if self._future.done() or self._is_asked(self._next_address()):
            return
        drains = self._client._drains(self._next_address())  # noqa: SLF001 - one thing in two classes
        if not drains and self._may_try():
            self._client.stats.hedged += 1
            self._try()

    def _may_try(self) -> bool:
        client = self._client
        if client._closed:  # noqa: SLF001 - one thing in two classes
            return False
        if len(self._attempts) <= client._retries:  # noqa: SLF001
            return True
        # Beyond the retries, try only while the listed holders are the same and one of them answered recently.
        now, deadline, since = self._loop.time(), client._deadline, client._failing_since  # noqa: SLF001
        listed_anew = client._versions.get(self._version) is not self._routes  # noqa: SLF001
        recently = any(now - since.get(address, now) < deadline for address in self._asked)
        return now - self._began < deadline and not listed_anew and recently

    def _done(self, attempt: LookupAttempt, address: str) -> None:
        if self._future.done():
            return
        if attempt.status == Status.OK:
            self._client._failing_since.pop(address, None)  # noqa: SLF001
            self._future.set_result((attempt.values, attempt.missing))
            return
        if attempt.status is None:
            self._client._failing_since.setdefault(address, self._loop.time())  # noqa: SLF001
        self._reasons[address] = attempt.reason
        if attempt.status in _NOT_HELD:
            self._not_held = True
            self._asked.pop(address, None)
        if self._not_held:
            # The caller switches to another version then, and must not wait for a holder that is gone.
            self._asked = {each: attempts for each, attempts in self._asked.items() if self._may_answer(each)}
        if not self._asked:
            self._fail()
        elif self._again is not None:
            return
        # After a status "not held", no holder gets two attempts at a time.
        elif self._may_try() and not (self._not_held and self._is_asked(self._next_address())):
            self._client.stats.retried += 1
            # Retries come at once; the pauses begin beyond them.
            beyond = max(0, len(self._attempts) - self._client._retries)  # noqa: SLF001
            pause = growing_pause(beyond, _FIRST_PAUSE, _LONGEST_PAUSE)
            self._again = self._loop.call_later(pause, self._try_unless_done)
        elif not any(other.open for other in self._attempts):
            self._fail()

    def _try_unless_done(self) -> None:
        self._again = None
        if not self._future.done():
            self._try()

    def _fail(self) -> None:
        reasons = "; ".join(f"{address} {reason}" for address, reason in self._reasons.items())
        if self._not_held:
            self._future.set_exception(VersionNotHeld(self._version, reasons))
        else:
            self._future.set_exception(
                CubeUnavailable(f"no holder of version {self._version} answered: {reasons}; is the cube running?")
            )
