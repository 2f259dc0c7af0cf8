"""The connections of the compiled lookup loop: `machine_code.sockets`, counted as cube-server counts, and a round's buffers.

Where there is no place for another connection, the least recently used one makes room: one that has not said a whole
hello first, then one that has asked nothing for a second.

A connection that has output waiting is not read: a reader asks again when it has been answered, and what it sends
meanwhile can wait in the kernel. So a connection's buffers hold one largest request and one largest reply.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.cube.server.counters import ACCEPTED, BYTES_IN, BYTES_OUT, CONNECTIONS
from elastic_ctr.machine_code import sockets
from elastic_ctr.machine_code.compiled import compiled
from elastic_ctr.machine_code.sockets import (
    BROKEN,
    CLOSED,
    CLOSING,
    HELLO,
    IN,
    MODIFY,
    NOTHING,
    OUT,
    OUT_END,
    STATE,
    Sockets,
)

# Of a connection's row: when it was last used, in nanoseconds of `machine_code.sockets.now`; until its hello, when it came.
USED_AT = sockets.WIDTH
CONNECTION_WIDTH = sockets.WIDTH + 1
# A hello comes with the connection: within a tenth of a second where nothing is wrong, within these seconds or not at all.
HELLO_SECONDS = 5
_HELLO_NANOSECONDS = 100_000_000
_IDLE_NANOSECONDS = 1_000_000_000

# The round's row, i64: keys, output bytes, lookups, sends so far.
ROUND_KEYS, ROUND_BYTES, ROUND_LOOKUPS, ROUND_SENDS = range(4)
# A lookup of the round: where its reply starts, its keys, where they start, its version's index, and the descriptor that it is
# answered to in pieces, or NOBODY.
REPLY_AT, KEY_COUNT, KEY_AT, VERSION_AT, PIECES_TO = range(5)
LOOKUP_WIDTH = 5
NOBODY = -1

MAX_LOOKUPS = 8192


class Buffers(NamedTuple):
    """What the loop keeps between rounds."""

    sockets: Sockets
    round: NDArray[np.int64]
    replies: NDArray[np.uint8]  # of the round; may be larger than memory
    lookups: NDArray[np.int64]  # [MAX_LOOKUPS, LOOKUP_WIDTH]
    sends: NDArray[np.int64]  # [MAX_LOOKUPS, 3]: descriptor, start, end in replies
    keys: NDArray[np.uint64]
    places: NDArray[np.int64]
    missing: NDArray[np.uint8]
    scratch: NDArray[np.uint64]
    max_keys: int
    piece_keys: int  # a lookup of more is answered in pieces
    busy_poll_ns: int  # nanoseconds, see `machine_code.sockets.busy_poll`
    wake: int


@compiled
def _hang_up(b: Any, counts: Any, fd: Any) -> None:
    sockets.close(b.sockets, fd)
    counts[CONNECTIONS] -= 1


@compiled
def woken_at(b: Any) -> Any:
    """When `busy_poll` returned last."""
    return b.sockets.clock[0] * 1_000_000_000 + b.sockets.clock[1]


@compiled
def _least_recently_used(connections: Any, now: Any) -> Any:
    """The connection that makes room for a new one, or NOBODY."""
    found = np.int64(NOBODY)
    found_greeted = True
    for fd in range(connections.shape[0]):
        state = connections[fd, STATE]
        greeted = state != HELLO
        if state == CLOSED or now - connections[fd, USED_AT] < (_IDLE_NANOSECONDS if greeted else _HELLO_NANOSECONDS):
            continue
        older = found == NOBODY or connections[fd, USED_AT] < connections[found, USED_AT]
        if (found_greeted and not greeted) or (found_greeted == greeted and older):
            found, found_greeted = np.int64(fd), greeted
    return found


@compiled
def accept(b: Any, counts: Any) -> None:
    connections = b.sockets.connections
    while True:
        fd = sockets.accept(b.sockets)
        if fd < 0:
            return
        if fd >= connections.shape[0]:
            old = _least_recently_used(connections, woken_at(b))
            if old == NOBODY:
                sockets.turn_away(fd)
                continue
            sockets.replace(b.sockets, old, fd)
            counts[CONNECTIONS] -= 1
            fd = old
        connections[fd, USED_AT] = woken_at(b)
        counts[CONNECTIONS] += 1
        counts[ACCEPTED] += 1


@compiled
def send_bytes(b: Any, counts: Any, fd: Any, start: Any, end: Any) -> Any:
    """Send those bytes of the round's replies, behind what waits already; False when the peer is gone."""
    sent = sockets.send(b.sockets, fd, np.uint64(b.replies.ctypes.data) + np.uint64(start), end - start)
    if sent == BROKEN:
        _hang_up(b, counts, fd)
        return False
    counts[BYTES_OUT] += sent
    return True


@compiled
def finish(b: Any, counts: Any, fd: Any) -> None:
    """After the last bytes: wait for what the socket did not take, or end with it."""
    row = b.sockets.connections[fd]
    if row[OUT_END] > 0:
        sockets.watch(b.sockets, fd, MODIFY, OUT)
    elif row[CLOSING] != 0:
        _hang_up(b, counts, fd)


@compiled
def send_round(b: Any, counts: Any) -> None:
    for number in range(b.round[ROUND_SENDS]):
        fd, start, end = b.sends[number]
        if send_bytes(b, counts, fd, start, end):
            finish(b, counts, fd)


@compiled
def send_waiting(b: Any, counts: Any, fd: Any) -> None:
    """Go on with output that waited."""
    row = b.sockets.connections[fd]
    sent = sockets.send_waiting(b.sockets, fd)
    if sent == BROKEN:
        _hang_up(b, counts, fd)
    elif sent != NOTHING:
        counts[BYTES_OUT] += sent
        if row[OUT_END] > 0:
            return
        if row[CLOSING] != 0:
            _hang_up(b, counts, fd)
        else:
            sockets.watch(b.sockets, fd, MODIFY, IN)


@compiled
def receive(b: Any, counts: Any, fd: Any) -> Any:
    """Read once what there is into the input buffer; False when nothing came or the peer is gone."""
    got = sockets.receive(b.sockets, fd, b.sockets.input_bytes)
    if got < 0:
        if got != NOTHING:
            _hang_up(b, counts, fd)
        return False
    counts[BYTES_IN] += got
    return True
