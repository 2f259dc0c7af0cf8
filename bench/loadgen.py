"""A load generator of machine code: epoll, requests encoded before, replies counted and checked by length and status.

It speaks whatever answers requests in order on one connection: our frames (a length first, the status behind it), RESP
(a reply that must start with certain bytes and is as long as all others), HTTP/1.1 (status 200 and content-length).
Requests that lie beside each other are sent in one call, for both sides alike. Closed loop: as many in flight on each
connection as asked for; or paced, and then a request's latency counts from when it was due.
"""

import select
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numba import types
from numpy.typing import NDArray

from bench.method import Sample
from elastic_ctr.cube.server.loop import BUSY_POLL_US
from elastic_ctr.machine_code.compiled import compiled
from elastic_ctr.machine_code.intrinsics import load_i32, load_u16, load_u32, store_u32
from elastic_ctr.machine_code.sockets import EVENT_BYTES, EVENT_DATA, busy_poll

FRAMES, RESP, HTTP = range(3)

# A connection's row.
IN_FLIGHT, CURSOR, SEND_AT, SEND_END, LEFT, STASHED, OLDEST, NEWEST, WAITING, DUE = range(10)
WIDTH = 10
# What is counted.
DONE, FAILED, STUCK, LATENCIES = range(4)

STASH = 2048
_READ = 256 << 10
_DRAIN_SECONDS = 10.0
_BUSY_POLL = 1000 * BUSY_POLL_US  # nanoseconds
_0, _4 = np.uint64(0), np.uint64(4)


def _external(name: str, result: Any, *parameters: Any) -> Any:
    return types.ExternalFunction(name, result(*parameters))


_recv = _external("recv", types.intp, types.int32, types.uint64, types.uintp, types.int32)
_send = _external("send", types.intp, types.int32, types.uint64, types.uintp, types.int32)
_epoll_ctl = _external("epoll_ctl", types.int32, types.int32, types.int32, types.int32, types.uint64)
_clock = _external("clock_gettime", types.int32, types.int32, types.uint64)
_errno = _external("__errno_location", types.uint64)


class State(NamedTuple):
    """What the compiled loop works on."""

    requests: NDArray[np.uint8]
    starts: NDArray[np.int64]  # [requests + 1]: where each begins
    expected: NDArray[np.uint8]  # RESP: how a reply begins
    rest: int  # RESP: its bytes after that
    kind: int
    fds: NDArray[np.int32]
    rows: NDArray[np.int64]  # [connections, WIDTH]
    stash: NDArray[np.uint8]  # [connections, STASH]
    sent_at: NDArray[np.float64]  # [connections, pipeline]
    due: NDArray[np.float64]  # [connections]
    latencies: NDArray[np.float64]
    counted: NDArray[np.int64]
    times: NDArray[np.float64]  # when the last reply came
    buffer: NDArray[np.uint8]
    events: NDArray[np.uint8]
    clock: NDArray[np.int64]
    epoll: int
    pipeline: int


@compiled
def _now(s: Any) -> Any:
    _clock(np.int32(1), np.uint64(s.clock.ctypes.data))
    return s.clock[0] + s.clock[1] * 1e-9


@compiled
def _interest(s: Any, number: Any, events: Any) -> None:
    at = np.uint64(s.events.ctypes.data) + np.uint64(256 * EVENT_BYTES)
    store_u32(at, events)
    store_u32(at + np.uint64(EVENT_DATA), np.uint32(number))
    store_u32(at + np.uint64(EVENT_DATA + 4), np.uint32(0))
    _epoll_ctl(np.int32(s.epoll), np.int32(3), s.fds[number], at)


@compiled
def _pump(s: Any, number: Any, now: Any, stop: Any, interval: Any) -> None:
    """Send what may be sent on this connection."""
    row = s.rows[number]
    count = s.starts.size - 1
    blocked = False
    while True:
        if row[SEND_AT] == row[SEND_END]:
            free = s.pipeline - row[IN_FLIGHT]
            if free <= 0 or now >= stop:
                break
            if interval > 0:
                if s.due[number] > now:
                    break
                free = 1
            taken = min(free, count - row[CURSOR])
            row[SEND_AT], row[SEND_END] = s.starts[row[CURSOR]], s.starts[row[CURSOR] + taken]
            row[CURSOR] = (row[CURSOR] + taken) % count
            for _ in range(taken):
                s.sent_at[number, row[NEWEST]] = s.due[number] if interval > 0 else now
                row[NEWEST] = (row[NEWEST] + 1) % s.pipeline
            row[IN_FLIGHT] += taken
            s.due[number] += interval
        from_ = np.uint64(s.requests.ctypes.data) + np.uint64(row[SEND_AT])
        sent = np.int64(_send(s.fds[number], from_, np.uint64(row[SEND_END] - row[SEND_AT]), np.int32(0x4040)))
        if sent < 0:
            if load_i32(_errno()) != 11:
                s.counted[STUCK] += 1
                return
            blocked = True
            break
        row[SEND_AT] += sent
    if blocked != (row[WAITING] != 0):
        row[WAITING] = 1 if blocked else 0
        _interest(s, number, np.uint32(5 if blocked else 1))


@compiled
def _finish(s: Any, number: Any, now: Any, good: Any) -> None:
    row = s.rows[number]
    s.counted[DONE] += 1
    if not good:
        s.counted[FAILED] += 1
    s.latencies[s.counted[LATENCIES] % s.latencies.size] = now - s.sent_at[number, row[OLDEST]]
    s.counted[LATENCIES] += 1
    row[OLDEST] = (row[OLDEST] + 1) % s.pipeline
    row[IN_FLIGHT] -= 1
    row[STASHED] = 0
    s.times[0] = now


@compiled
def _http_reply(buffer: Any, at: Any, end: Any) -> Any:
    """(Where the body begins, its length, is it a good answer) of a reply whose head is whole; -1 to begin: it is not."""
    name = b"content-length:"
    length = np.int64(-1)
    line = at
    for place in range(at, end):
        if buffer[place] != 10:
            continue
        if place - line <= 1:
            return (
                place + 1,
                length,
                end - at > 11 and buffer[at + 9] == 50 and buffer[at + 10] == 48 and buffer[at + 11] == 48,
            )
        line = place + 1
        if end - line < 16 or buffer[line] | 32 != name[0] or buffer[line + 7] != name[7]:
            continue
        found = True
        for i in range(15):
            found = found and (buffer[line + i] == name[i] or buffer[line + i] | 32 == name[i])
        if found:
            digit = line + 15
            while digit < end and buffer[digit] == 32:
                digit += 1
            length = np.int64(0)
            while digit < end and 48 <= buffer[digit] <= 57:
                length = length * 10 + np.int64(buffer[digit] - 48)
                digit += 1
    return np.int64(-1), length, False


@compiled
def _http_length(stash: Any, size: Any) -> Any:
    """What content-length says, -1 without one."""
    name = b"\ncontent-length:"
    for at in range(size - 16):
        found = True
        for i in range(16):
            byte = stash[at + i]
            if 65 <= byte <= 90:
                byte += 32
            if byte != name[i]:
                found = False
                break
        if found:
            digit = at + 16
            length = np.int64(0)
            while stash[digit] == 32:
                digit += 1
            while 48 <= stash[digit] <= 57:
                length = length * 10 + stash[digit] - 48
                digit += 1
            return length
    return np.int64(-1)


@compiled
def _head(s: Any, number: Any) -> Any:
    """(is the head whole, bytes still to come, is it a good answer) of what is stashed; -1 to come: not understood."""
    row = s.rows[number]
    stash = s.stash[number]
    size = row[STASHED]
    at = np.uint64(stash.ctypes.data)
    if s.kind == FRAMES:
        if size < 8:
            return False, np.int64(0), True
        return True, np.int64(load_u32(at)) - 4, load_u16(at + _4) == 0
    if s.kind == RESP:
        if stash[size - 1] != s.expected[size - 1]:
            return True, np.int64(-1), False
        return size == s.expected.size, np.int64(s.rest), True
    if size < 16 or stash[size - 1] != 10 or load_u32(at + np.uint64(size - 4)) != np.uint32(0x0A0D0A0D):
        return False, np.int64(0), True
    good = stash[9] == 50 and stash[10] == 48 and stash[11] == 48
    return True, _http_length(stash, size), good


@compiled
def _take(s: Any, number: Any, got: Any, now: Any, good: Any) -> Any:
    """Count the replies in these bytes; returns False when they are no replies."""
    row = s.rows[number]
    at = np.int64(0)
    while at < got:
        if row[LEFT] > 0:
            taken = min(row[LEFT], got - at)
            row[LEFT] -= taken
            at += taken
            if row[LEFT] == 0:
                _finish(s, number, now, good[number] != 0)
            continue
        if row[STASHED] >= STASH or row[IN_FLIGHT] == 0:
            return False
        if s.kind == HTTP and row[STASHED] == 0:
            body, rest, fine = _http_reply(s.buffer, at, got)
            if body >= 0:
                if rest < 0:
                    return False
                at = body
                good[number] = 1 if fine else 0
                row[LEFT] = rest
                if rest == 0:
                    _finish(s, number, now, fine)
                continue
        s.stash[number, row[STASHED]] = s.buffer[at]
        row[STASHED] += 1
        at += 1
        whole, rest, fine = _head(s, number)
        if not whole:
            continue
        if rest < 0:
            return False
        good[number] = 1 if fine else 0
        row[LEFT] = rest
        if rest == 0:
            _finish(s, number, now, fine)
    return True


@compiled
def drive(s: Any, good: Any, seconds: Any, rate: Any, pause: Any) -> None:
    """Load for that long, then wait for what is in flight. rate 0: closed loop; else requests a second, over all.

    Paced it sleeps at most pause milliseconds; with 0 it never sleeps, and is never late.
    """
    began = _now(s)
    stop = began + seconds
    interval = s.fds.size / rate if rate > 0 else 0.0
    for number in range(s.fds.size):
        s.due[number] = began + (number / rate if rate > 0 else 0.0)
        _pump(s, number, began, stop, interval)
    s.times[0] = began
    polling = np.int64(0)
    events = np.uint64(s.events.ctypes.data)
    while s.counted[STUCK] == 0:
        paced = rate > 0 and _now(s) < stop
        # As cube-server does, but for one that has requests to send in time.
        ready, polling = busy_poll(s, pause if paced else 100, 0 if paced else polling, _BUSY_POLL)
        now = _now(s)
        if now >= stop:
            waiting = np.int64(0)
            for number in range(s.fds.size):
                waiting += s.rows[number, IN_FLIGHT]
            if waiting == 0:
                return
            if now > stop + _DRAIN_SECONDS:
                s.counted[STUCK] += waiting
                return
        for i in range(ready):
            connection = np.int64(load_u32(events + np.uint64(i * EVENT_BYTES + EVENT_DATA)))
            if load_u32(events + np.uint64(i * EVENT_BYTES)) & np.uint32(~np.uint32(4)):
                got = np.int64(s.buffer.size)
                while got == s.buffer.size:
                    to = np.uint64(s.buffer.ctypes.data)
                    got = np.int64(_recv(s.fds[connection], to, np.uint64(s.buffer.size), np.int32(0x40)))
                    if got == 0 or (got < 0 and load_i32(_errno()) != 11):
                        s.counted[STUCK] += 1
                        return
                    if got > 0:
                        now = _now(s)
                        if not _take(s, connection, got, now, good):
                            s.counted[STUCK] += 1
                            return
            _pump(s, connection, now, stop, interval)
        if paced:
            for number in range(s.fds.size):
                if s.due[number] <= now:
                    _pump(s, number, now, stop, interval)


class Expected(NamedTuple):
    """How replies are told apart: their kind, and for RESP how one begins and how many bytes follow."""

    kind: int
    begins: bytes = b""
    rest: int = 0


@dataclass
class Load:
    """Connections to one address, and requests to be sent over them again and again."""

    port: int
    requests: Sequence[bytes]
    expected: Expected
    connections: int
    pipeline: int = 1
    work: float = 1  # of one request: its keys, its instances
    greet: Callable[[socket.socket], None] | None = None
    rate: float = 0.0  # requests a second; 0: closed loop
    pause: int = 0  # milliseconds that pacing may be late
    _sockets: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        lengths = np.array([len(request) for request in self.requests], np.int64)
        self._starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        self._joined = np.frombuffer(b"".join(self.requests), np.uint8)

    def run(self, seconds: float) -> Sample:
        """Raises RuntimeError when the other side hangs up, or answers what cannot be an answer, or not at all."""
        if not self._sockets:
            self._connect()
        epoll = select.epoll()
        for number, each in enumerate(self._sockets):
            epoll.register(each.fileno(), select.EPOLLIN)
            _name(epoll, each.fileno(), number)
        state = self._state(epoll.fileno())
        good = np.ones(self.connections, np.uint8)
        cpu, began = time.thread_time(), time.clock_gettime(time.CLOCK_MONOTONIC)
        drive(state, good, seconds, self.rate, self.pause)
        spent = time.thread_time() - cpu
        epoll.close()
        if state.counted[STUCK]:
            self.close()
            raise RuntimeError(
                f"the server on port {self.port} hung up, or did not answer {state.counted[STUCK]} requests in time or in form"
            )
        if state.counted[DONE] == 0:
            raise RuntimeError(f"the server on port {self.port} answered nothing within {seconds} s")
        latencies = state.latencies[: min(int(state.counted[LATENCIES]), state.latencies.size)]
        p50, p99 = np.percentile(latencies, [50, 99])
        done, failed = int(state.counted[DONE]), int(state.counted[FAILED])
        return Sample(done * self.work, float(state.times[0]) - began, spent, float(p50), float(p99), failed)

    def close(self) -> None:
        for each in self._sockets:
            each.close()
        self._sockets.clear()

    def _connect(self) -> None:
        for _ in range(self.connections):
            made = socket.create_connection(("127.0.0.1", self.port), timeout=30)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.greet is not None:
                self.greet(made)
            made.setblocking(False)
            self._sockets.append(made)

    def _state(self, epoll: int) -> State:
        rows = np.zeros((self.connections, WIDTH), np.int64)
        # Each connection starts elsewhere in the requests.
        rows[:, CURSOR] = np.arange(self.connections) * len(self.requests) // self.connections
        return State(
            requests=self._joined,
            starts=self._starts,
            expected=np.frombuffer(self.expected.begins or b"?", np.uint8),
            rest=self.expected.rest,
            kind=self.expected.kind,
            fds=np.array([each.fileno() for each in self._sockets], np.int32),
            rows=rows,
            stash=np.zeros((self.connections, STASH), np.uint8),
            sent_at=np.zeros((self.connections, self.pipeline), np.float64),
            due=np.zeros(self.connections, np.float64),
            latencies=np.zeros(1 << 21, np.float64),
            counted=np.zeros(4, np.int64),
            times=np.zeros(1, np.float64),
            buffer=np.zeros(_READ, np.uint8),
            events=np.zeros(257 * EVENT_BYTES, np.uint8),
            clock=np.zeros(2, np.int64),
            epoll=epoll,
            pipeline=self.pipeline,
        )


@compiled
def _name_compiled(event: Any, epoll: Any, fd: Any) -> None:
    _epoll_ctl(np.int32(epoll), np.int32(3), np.int32(fd), np.uint64(event.ctypes.data))


def _name(epoll: select.epoll, fd: int, number: int) -> None:
    """Have events of this descriptor carry that number."""
    event = np.zeros(EVENT_BYTES, np.uint8)
    event[:4].view(np.uint32)[0] = select.EPOLLIN
    event[EVENT_DATA : EVENT_DATA + 4].view(np.uint32)[0] = number
    _name_compiled(event, epoll.fileno(), fd)
