"""Who the pservers are at this moment: learned from their parents' calls, forgotten with the process."""

from dataclasses import dataclass

from elastic_ctr.control import control_pb2 as control

GENERATION_PORTS = 16


@dataclass
class Pserver:
    """One pserver as its parent last described it."""

    incarnation: str
    host: str
    port: int
    admin_port: int
    generation: int
    serving: bool
    error: str
    seen_at: float


class Pservers:
    """The set of all `count` of them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._known: dict[int, Pserver] = {}

    def begin(self, count: int) -> None:
        """Others, and so many of them; none is known yet."""
        self.count = count
        self._known = {}

    def learn(self, state: control.PserverState, now: float) -> None:
        self._known[state.index] = Pserver(
            state.incarnation,
            state.host,
            state.port,
            state.admin_port,
            state.generation,
            state.serving,
            state.error,
            now,
        )

    def forget(self, index: int) -> None:
        self._known.pop(index, None)

    def get(self, index: int) -> Pserver | None:
        return self._known.get(index)

    def items(self) -> list[tuple[int, Pserver]]:
        return sorted(self._known.items())

    def endpoints(self, generation: int) -> list[str]:
        """Addresses of the children of a generation, in order; empty until every parent is known.

        Each generation has a port of its own: a trainer that slept through a recovery cannot reach the new table.
        """
        if len(self._known) < self.count:
            return []
        return [f"{each.host}:{each.port + generation % GENERATION_PORTS}" for _, each in self.items()]

    def waiting_for(self, generation: int) -> str:
        """Empty when all serve; else who is missing, in words."""
        missing = [
            index
            for index in range(self.count)
            if (one := self._known.get(index)) is None or one.generation != generation or not one.serving
        ]
        if not missing:
            return ""
        errors = [f" ({one.error})" for index in missing if (one := self._known.get(index)) is not None and one.error]
        return f"pserver {', '.join(map(str, missing))} of {self.count}{errors[0] if errors else ''}"

    def silent_since(self, moment: float) -> list[int]:
        """Those that have not called since a moment, whether they ever did or not."""
        return [i for i in range(self.count) if (one := self._known.get(i)) is None or one.seen_at < moment]

    def silent(self, now: float, timeout: float) -> list[int]:
        return [index for index, each in self.items() if now - each.seen_at > timeout]
