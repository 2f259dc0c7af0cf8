"""The attempts of the Python client: the address and the timeout of each, and the rule for retries."""

from __future__ import annotations

import http
import random
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from elastic_ctr.runtime.growing_pause import growing_pause
from elastic_ctr.serving.client_connections import Address, Response
from elastic_ctr.serving.client_messages import sentence_of

# Statuses of a server, or of a proxy before it, that cannot answer now.
_PASSING = (http.HTTPStatus.BAD_GATEWAY, http.HTTPStatus.SERVICE_UNAVAILABLE, http.HTTPStatus.GATEWAY_TIMEOUT)
# If all servers are in trouble, the retries add at most a tenth to a client's requests, so they do not make the trouble worse.
_TOKENS_OF_A_REQUEST, _MOST_TOKENS = 0.1, 10.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 1.0
_FIRST_REST, _LONGEST_REST = 0.5, 10.0


class ServingUnavailable(ConnectionError):
    """Serving cannot be reached, was silent for too long, or sent no reply of its protocol."""


class PredictionRefused(ValueError):
    """Serving answered with a refusal: its HTTP status and its sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Attempt(NamedTuple):
    """Send to `address` after `pause` seconds, and wait for the answer until the time `until` of the monotonic clock."""

    address: Address
    pause: float
    until: float


class Addresses:
    """The addresses of one client: they take turns, and an address that failed is avoided for a while if there is another."""

    def __init__(self, texts: Sequence[str]) -> None:
        """Raises ServingUnavailable."""
        try:
            self.all = tuple(dict.fromkeys(map(Address.parse, texts)))
        except ValueError as wrong:
            raise ServingUnavailable(str(wrong)) from None
        if not self.all:
            raise ServingUnavailable("there is no address: give host:port of at least one")
        # A random start, so that clients that start together do not all begin with the first address.
        self._turn = random.randrange(len(self.all))  # noqa: S311 (no secret)
        self._failures: dict[Address, int] = {}
        self._rests_until: dict[Address, float] = {}
        self.tokens = _MOST_TOKENS

    def pick(self, tried: Sequence[Address], now: float) -> Address:
        """Return the next address in turn; first those tried least for this request, then those that did not fail lately."""
        self._turn += 1
        in_turn = [self.all[(self._turn + at) % len(self.all)] for at in range(len(self.all))]
        return min(in_turn, key=lambda each: (tried.count(each), max(0.0, self._rests_until.get(each, 0.0) - now)))

    def failed(self, address: Address, now: float) -> None:
        times = self._failures[address] = self._failures.get(address, 0) + 1
        self._rests_until[address] = now + growing_pause(times, _FIRST_REST, _LONGEST_REST)

    def answered(self, address: Address) -> None:
        self._failures.pop(address, None)
        self._rests_until.pop(address, None)


class Question:
    """One request until it is answered or given up. Predictions change nothing, so each may be sent again."""

    def __init__(
        self, addresses: Addresses, timeout_seconds: float, retries: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._addresses = addresses
        self._clock = clock
        self._until = clock() + timeout_seconds
        self._retries_left = retries
        self._tried: list[Address] = []
        self._pause = 0.0
        self._lost_stale = False
        addresses.tokens = min(addresses.tokens + _TOKENS_OF_A_REQUEST, _MOST_TOKENS)

    def attempt(self) -> Attempt:
        now = self._clock()
        address = self._addresses.pick(self._tried, now)
        self._tried.append(address)
        pause, self._pause = min(self._pause, max(0.0, self._until - now)), 0.0
        left = self._until - now - pause
        # A server that hangs must leave time for an attempt at another one.
        share = 2 if self._retries_left and len(self._addresses.all) > 1 else 1
        return Attempt(address, pause, now + pause + left / share)

    def failed(self, attempt: Attempt, failure: Exception, *, reused: bool) -> None:
        """Return if another attempt is due, else raise ServingUnavailable.

        `reused`: the connection was used before, so the server may just have closed it for being idle.
        """
        if reused and not self._lost_stale and not isinstance(failure, TimeoutError):
            self._lost_stale = True
            self._tried.remove(attempt.address)
            return
        self._addresses.failed(attempt.address, self._clock())
        if not self._again():
            raise ServingUnavailable(f"{attempt.address.text}: {str(failure) or type(failure).__name__}") from failure

    def settled(self, attempt: Attempt, response: Response, what: str) -> bool:
        """True if the response is the answer, False if another attempt is due. Raises PredictionRefused."""
        if response.status == http.HTTPStatus.OK:
            self._addresses.answered(attempt.address)
            return True
        if response.status in _PASSING:
            self._addresses.failed(attempt.address, self._clock())
            if self._again():
                return False
        sentence = sentence_of(response.body)
        raise PredictionRefused(
            response.status, sentence or f"{attempt.address.text}: {what} was answered with status {response.status}"
        )

    def _again(self) -> bool:
        if self._retries_left <= 0 or self._addresses.tokens < 1 or self._clock() >= self._until:
            return False
        self._retries_left -= 1
        self._addresses.tokens -= 1
        rounds = len(self._tried) // len(self._addresses.all)
        # Pause once every address was tried, for a random time so that clients do not retry together.
        longest = growing_pause(rounds, _FIRST_PAUSE, _LONGEST_PAUSE)
        self._pause = longest * random.uniform(0.5, 1)  # noqa: S311 (no secret)
        return self._clock() + self._pause < self._until
