"""The lookup loop as machine code: accept, read, check, look up, answer, without the interpreter and without the GIL.

A round takes the requests of all ready connections, answers them with one pass over the table, and sends. A lookup of
very many keys is a round of its own and is answered in pieces: the kernel sends them from the cache while the next ones
are looked up. The loop leaves the machine code only when the wake descriptor is readable; Python then replaces the
tables and enters it again. The length of a frame is checked before its bytes are used. A connection with waiting output
is not read, so its buffers need room for one largest request and one largest reply. If all rows are taken, a new
connection replaces the least recently used one: first one without a hello, then one idle for a second.
"""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.cube import wire
from elastic_ctr.cube.dictionary.format import stride_for
from elastic_ctr.cube.dictionary.kernel import FLOAT16, FLOAT32, INT8, look_up, partition_of
from elastic_ctr.cube.server import lookup_counters as counters
from elastic_ctr.cube.wire import HEAD_BYTES, HELLO_BYTES
from elastic_ctr.cube.wire_native import greets, magic_number, put_head, put_hello
from elastic_ctr.formats.value_kind import VALUE_KINDS, ValueKind
from elastic_ctr.machine_code import sockets
from elastic_ctr.machine_code.compiled import bounds_checked, compiled, inlined
from elastic_ctr.machine_code.intrinsics import copy_bytes, load_u8, load_u16, load_u32, load_u64, store_u8, zero_bytes
from elastic_ctr.machine_code.sockets import (
    BROKEN,
    CLOSED,
    CLOSING,
    EVENT_BYTES,
    EVENT_DATA,
    HELLO,
    IN,
    INPUT,
    MODIFY,
    NEVER,
    NOTHING,
    OPEN,
    OUT,
    OUT_END,
    SKIP,
    STATE,
    Sockets,
    busy_poll,
    consume,
    input_of,
    skipped,
)

# Column of a connection's row: the time of its last use, before the hello of its arrival, in ns of `machine_code.sockets.now`.
USED_AT = sockets.WIDTH
CONNECTION_WIDTH = sockets.WIDTH + 1
# A client sends its hello with the connection. It arrives within a tenth of a second as a rule, or the loop hangs up after this.
HELLO_SECONDS = 5
_HELLO_NANOSECONDS = 100_000_000
_IDLE_NANOSECONDS = 1_000_000_000

# The round's row, i64: keys, output bytes, lookups, sends so far.
ROUND_KEYS, ROUND_BYTES, ROUND_LOOKUPS, ROUND_SENDS = range(4)
# A lookup of the round: the offset of its reply, the number of its keys, their offset, its version's index, and the
# descriptor that gets the answer in pieces, or NONE.
REPLY_AT, KEY_COUNT, KEY_AT, VERSION_AT, PIECES_TO = range(5)
LOOKUP_WIDTH = 5
NONE = -1

MAX_LOOKUPS = 8192


class LookupBuffers(NamedTuple):
    """The buffers that the loop keeps between rounds."""

    sockets: Sockets
    round: NDArray[np.int64]
    replies: NDArray[np.uint8]  # the round's output; may be larger than memory
    lookups: NDArray[np.int64]  # [MAX_LOOKUPS, LOOKUP_WIDTH]
    sends: NDArray[np.int64]  # [MAX_LOOKUPS, 3]: descriptor, start, end in replies
    keys: NDArray[np.uint64]
    places: NDArray[np.int64]
    missing: NDArray[np.uint8]
    scratch: NDArray[np.uint64]
    max_keys: int
    piece_keys: int  # a lookup of more keys is answered in pieces
    busy_poll_ns: int  # nanoseconds, see `machine_code.sockets.busy_poll`
    wake: int


@compiled
def _hang_up(b: Any, counts: Any, fd: Any) -> None:
    sockets.close(b.sockets, fd)
    counts[counters.CONNECTIONS] -= 1


@compiled
def woken_at(b: Any) -> Any:
    """Return the time of `busy_poll`'s last return, in nanoseconds."""
    return b.sockets.clock[0] * 1_000_000_000 + b.sockets.clock[1]


@compiled
def _least_recently_used(connections: Any, now: Any) -> Any:
    """Return the connection that a new one may replace, or NONE."""
    found = np.int64(NONE)
    found_greeted = True
    for fd in range(connections.shape[0]):
        state = connections[fd, STATE]
        greeted = state != HELLO
        if state == CLOSED or now - connections[fd, USED_AT] < (_IDLE_NANOSECONDS if greeted else _HELLO_NANOSECONDS):
            continue
        older = found == NONE or connections[fd, USED_AT] < connections[found, USED_AT]
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
            if old == NONE:
                sockets.reject(fd)
                continue
            sockets.replace(b.sockets, old, fd)
            counts[counters.CONNECTIONS] -= 1
            fd = old
        connections[fd, USED_AT] = woken_at(b)
        counts[counters.CONNECTIONS] += 1
        counts[counters.ACCEPTED] += 1


@compiled
def send_bytes(b: Any, counts: Any, fd: Any, start: Any, end: Any) -> Any:
    """Send bytes of the round's replies after the output that already waits. Return False if the connection is broken."""
    sent = sockets.send(b.sockets, fd, np.uint64(b.replies.ctypes.data) + np.uint64(start), end - start)
    if sent == BROKEN:
        _hang_up(b, counts, fd)
        return False
    counts[counters.BYTES_OUT] += sent
    return True


@compiled
def finish(b: Any, counts: Any, fd: Any) -> None:
    """After a connection's last bytes: wait until the socket accepts the rest, or hang up if the connection is closing."""
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
    """Send more of the output that waits."""
    row = b.sockets.connections[fd]
    sent = sockets.send_waiting(b.sockets, fd)
    if sent == BROKEN:
        _hang_up(b, counts, fd)
    elif sent != NOTHING:
        counts[counters.BYTES_OUT] += sent
        if row[OUT_END] > 0:
            return
        if row[CLOSING] != 0:
            _hang_up(b, counts, fd)
        else:
            sockets.watch(b.sockets, fd, MODIFY, IN)


@compiled
def receive(b: Any, counts: Any, fd: Any) -> Any:
    """Read once into the input buffer. Return False if nothing came or the connection ended."""
    got = sockets.receive(b.sockets, fd, b.sockets.input_bytes)
    if got < 0:
        if got != NOTHING:
            _hang_up(b, counts, fd)
        return False
    counts[counters.BYTES_IN] += got
    return True


FLUSH_KEYS = 4096  # a round of more keys is answered before more is read, while its bytes are still in the cache
PIECE_BYTES = 576 << 10  # the most bytes of values in a piece of an answer

_CHECKED = bounds_checked()
_MAGIC = magic_number(wire.MAGIC)
_PROTOCOL = np.uint16(wire.PROTOCOL)
_LOOKUP, _KEEP_ALIVE = np.uint16(wire.MessageKind.LOOKUP), np.uint16(wire.MessageKind.KEEP_ALIVE)
_OK, _NO_VERSION, _NO_PARTITION, _BAD = (
    np.uint16(status)
    for status in (
        wire.Status.OK,
        wire.Status.VERSION_NOT_HELD,
        wire.Status.PARTITION_NOT_HELD,
        wire.Status.BAD_REQUEST,
    )
)
_0, _4, _8 = np.uint64(0), np.uint64(4), np.uint64(8)


class Tables(NamedTuple):
    """The loaded versions in any order. There is at least one row; the first `size` rows are valid."""

    size: int
    versions: NDArray[np.uint64]  # [versions]
    places: NDArray[np.int64]  # [versions]: column among the counters
    rows: NDArray[np.uint64]  # [versions, partitions, WIDTH]
    overlays: NDArray[np.int64]  # [versions]: how many lie over the full parts
    values: NDArray[np.int64]  # [versions]: the code of their kind of values
    complete: NDArray[np.bool_]
    held: NDArray[np.bool_]  # [versions, partitions]
    reciprocal: np.uint64
    dim: int
    partitions: int
    draining: int


@compiled
def _put_head(b: Any, t: Any, length: Any, status: Any, n: Any, request: Any, version: Any) -> None:
    at = b.round[ROUND_BYTES]
    if _CHECKED and at + length > b.replies.size:
        raise IndexError("a reply outside the round")
    put_head(np.uint64(b.replies.ctypes.data) + np.uint64(at), length, status, t.draining, n, request, version)
    b.round[ROUND_BYTES] = at + length


@compiled
def _find_version(t: Any, version: Any) -> Any:
    for index in range(t.size):
        if t.versions[index] == version:
            return index
    return -1


@compiled
def _all_held(t: Any, index: Any, keys: Any) -> Any:
    if t.complete[index]:
        return True
    for key in keys:
        if key != _0 and not t.held[index, partition_of(key, np.uint64(t.partitions), t.reciprocal)]:
            return False
    return True


@compiled
def _piece_of(n: Any, most: Any) -> Any:
    """Return the keys of each piece but the last, for n keys in the fewest pieces of at most `most` keys."""
    if n <= most:
        return n
    pieces = (n + most - 1) // most
    return (n + pieces - 1) // pieces


@compiled
def _take_requests(b: Any, t: Any, counts: Any, fd: Any) -> Any:
    """Take the complete requests of a connection into the round. Return True if the round must be answered before the
    rest fits.
    """
    full = False
    in_pieces = False
    dim = t.dim
    length = np.int64(0)
    row = b.sockets.connections[fd]
    at: Any
    base = input_of(b.sockets, fd)
    have = row[INPUT]
    at = np.int64(0)
    began = b.round[ROUND_BYTES]
    while row[CLOSING] == 0:
        at += skipped(row, have - at)
        if row[SKIP] > 0 or have - at < (HELLO_BYTES if row[STATE] == HELLO else HEAD_BYTES):
            break
        from_ = base + np.uint64(at)
        n = np.int64(0)
        whole = np.int64(HELLO_BYTES)
        kind = np.uint16(0)
        need = np.int64(HELLO_BYTES)
        if row[STATE] == OPEN:
            length, kind, n = np.int64(load_u32(from_)), load_u16(from_ + _4), np.int64(load_u32(from_ + _8))
            whole = HEAD_BYTES + 8 * n
            need = np.int64(HEAD_BYTES)
            if kind == _LOOKUP and n <= b.max_keys and length == whole - 4:
                if have - at < whole:
                    break
                need = HEAD_BYTES + 4 * dim * n + (n + 7) // 8
        # The reply needs room in the round, and in this connection's own output in case its peer does not read.
        if (
            b.round[ROUND_BYTES] + need > b.replies.size
            or b.round[ROUND_BYTES] - began + need > b.sockets.output_bytes
            or b.round[ROUND_KEYS] + n > b.keys.size
            or b.round[ROUND_LOOKUPS] == MAX_LOOKUPS
            or b.round[ROUND_SENDS] == MAX_LOOKUPS - 1
            or n > b.piece_keys
        ) and b.round[ROUND_BYTES] > 0:
            full = True
            break
        if row[STATE] == HELLO:
            ours = np.uint64(b.replies.ctypes.data) + np.uint64(b.round[ROUND_BYTES])
            known = t.size > 0
            row[USED_AT] = woken_at(b)
            put_hello(ours, _MAGIC, _PROTOCOL, dim if known else 0, t.partitions if known else 0, b.max_keys)
            b.round[ROUND_BYTES] += HELLO_BYTES
            if not greets(from_, _MAGIC, _PROTOCOL):
                row[CLOSING] = 1
            row[STATE] = OPEN
            at += HELLO_BYTES
            continue
        request, version = load_u64(from_ + np.uint64(12)), load_u64(from_ + np.uint64(20))
        if length != whole - 4:
            # The end of this frame is uncertain, so no byte after it can be trusted.
            _put_head(b, t, HEAD_BYTES, _BAD, 0, request, version)
            counts[counters.BAD_REQUESTS] += 1
            row[CLOSING] = 1
        elif kind == _KEEP_ALIVE and n == 0:
            index = _find_version(t, version)
            counts[counters.KEEP_ALIVES] += 1
            if index >= 0:
                counts[counters.VERSIONS_AT + t.places[index]] += 1
            _put_head(b, t, HEAD_BYTES, _OK if index >= 0 else _NO_VERSION, 0, request, version)
            at += HEAD_BYTES
        elif kind != _LOOKUP or n > b.max_keys:
            _put_head(b, t, HEAD_BYTES, _BAD, 0, request, version)
            counts[counters.BAD_REQUESTS] += 1
            row[SKIP] = 8 * n
            at += HEAD_BYTES
        else:
            index = _find_version(t, version)
            counts[counters.REQUESTS] += 1
            counts[counters.KEYS] += n
            first = b.round[ROUND_KEYS]
            keys = b.keys[first : first + n]
            copy_bytes(np.uint64(keys.ctypes.data), from_ + np.uint64(HEAD_BYTES), np.uint64(8 * n))
            if index < 0:
                _put_head(b, t, HEAD_BYTES, _NO_VERSION, 0, request, version)
                counts[counters.NOT_HELD] += 1
            elif not _all_held(t, index, keys):
                _put_head(b, t, HEAD_BYTES, _NO_PARTITION, 0, request, version)
                counts[counters.NOT_HELD] += 1
                counts[counters.VERSIONS_AT + t.places[index]] += 1
            else:
                counts[counters.VERSIONS_AT + t.places[index]] += 1
                number = b.round[ROUND_LOOKUPS]
                reply = b.round[ROUND_BYTES]
                b.lookups[number, REPLY_AT], b.lookups[number, KEY_COUNT] = reply, n
                b.lookups[number, KEY_AT], b.lookups[number, VERSION_AT] = first, index
                b.lookups[number, PIECES_TO] = NONE
                if n > b.piece_keys:
                    in_pieces = True
                    b.lookups[number, PIECES_TO] = fd
                for i in range(_piece_of(n, b.piece_keys)):
                    b.places[first + i] = reply + HEAD_BYTES + 4 * dim * i
                b.round[ROUND_LOOKUPS] = number + 1
                b.round[ROUND_KEYS] = first + n
                _put_head(b, t, need, _OK, n, request, version)
            at += whole
            if in_pieces:
                full = True
                break
    consume(b.sockets, fd, at)
    if b.round[ROUND_BYTES] > began and not in_pieces:
        number = b.round[ROUND_SENDS]
        b.sends[number, 0], b.sends[number, 1], b.sends[number, 2] = fd, began, b.round[ROUND_BYTES]
        b.round[ROUND_SENDS] = number + 1
    return full


@compiled
def _mark(b: Any, at: Any, base: Any, n: Any, lost: Any) -> None:
    """Write the miss bits of n keys of the round to the address `at`."""
    zero_bytes(at, np.uint64((n + 7) // 8))
    if lost > 0:
        for i in range(n):
            if b.missing[base + i] != 0:
                byte = at + np.uint64(i >> 3)
                store_u8(byte, np.uint8(load_u8(byte) | np.uint8(1 << (i & 7))))


@compiled
def _mark_missing(b: Any, dim: Any, first: Any, after: Any, lost: Any) -> None:
    """Write the miss bits of the round's lookups from `first` to `after`."""
    for number in range(first, after):
        n = b.lookups[number, KEY_COUNT]
        at = np.uint64(b.replies.ctypes.data) + np.uint64(b.lookups[number, REPLY_AT] + HEAD_BYTES + 4 * dim * n)
        _mark(b, at, b.lookups[number, KEY_AT], n, lost)


@compiled
def _take_event(b: Any, t: Any, counts: Any, fd: Any) -> Any:
    """Serve a ready connection. Return True if the round is full before all requests of the connection were taken."""
    row = b.sockets.connections[fd]
    if row[STATE] == CLOSED:
        return False
    if row[STATE] == OPEN:
        row[USED_AT] = woken_at(b)
    if row[OUT_END] > 0:
        send_waiting(b, counts, fd)
        if row[STATE] == CLOSED or row[OUT_END] > 0:
            return False
        # epoll does not announce input again that was read before the output stopped.
        return _take_requests(b, t, counts, fd)
    if not receive(b, counts, fd):
        return False
    return _take_requests(b, t, counts, fd)


@inlined
def _answer(
    dim: Any, stride: Any, values: Any, b: Any, t: Any, index: Any, at: Any, stop: Any, places: Any
) -> Any:  # fmt: skip
    """Look up keys[at:stop] of the round. Return how many were missing."""
    return look_up(
        dim, stride, values, t.rows[index], t.reciprocal, t.overlays[index], b.keys[at:stop], stop - at, b.replies,
        places, b.missing[at:stop], b.scratch,
    )  # fmt: skip


@cache
def serve_loop(
    dim: int, values: ValueKind | None = "float32"
) -> Callable[[LookupBuffers, Tables, NDArray[np.int64]], None]:
    """serve(buffers, tables, counts i64[counters.WIDTH]) for tables of that dim and kind of values; returns when woken.

    With None the tables may have any mix of kinds, as during the rollout of a changed `model.values`; that takes longer to compile.
    """
    wide, half, byte = (values in {None, kind} for kind in VALUE_KINDS)
    wide_stride, half_stride, byte_stride = (stride_for(dim, kind) for kind in VALUE_KINDS)

    @compiled
    def serve(b: Any, t: Any, counts: Any) -> None:
        events = np.uint64(b.sockets.events.ctypes.data)
        woken = False
        polling = np.int64(0)
        while not woken:
            ready, polling = busy_poll(b.sockets, NEVER, polling, b.busy_poll_ns)
            number = np.int64(0)
            unfinished = np.int64(-1)
            while number <= ready:
                full = False
                if unfinished >= 0:
                    fd = unfinished
                    unfinished = np.int64(-1)
                    row = b.sockets.connections[fd]
                    if row[STATE] != CLOSED and row[OUT_END] == 0:
                        full = _take_requests(b, t, counts, fd)
                elif number < ready:
                    fd = np.int64(load_u32(events + np.uint64(number * EVENT_BYTES + EVENT_DATA)))
                    if fd == b.wake:
                        woken = True
                    elif fd == b.sockets.listener:
                        accept(b, counts)
                    else:
                        full = _take_event(b, t, counts, fd)
                else:
                    fd = np.int64(-1)
                last = number == ready
                if full:
                    unfinished = fd
                else:
                    number += 1
                if b.round[ROUND_BYTES] == 0 or not (full or last or b.round[ROUND_KEYS] > FLUSH_KEYS):
                    continue
                # Answer the gathered lookups, one pass per run of lookups in the same version, and send.
                lookups = b.round[ROUND_LOOKUPS]
                counts[counters.IN_FLIGHT] = lookups
                first = np.int64(0)
                while first < lookups:
                    index = b.lookups[first, VERSION_AT]
                    start = b.lookups[first, KEY_AT]
                    end = start
                    after = first
                    while after < lookups and b.lookups[after, VERSION_AT] == index:
                        end = b.lookups[after, KEY_AT] + b.lookups[after, KEY_COUNT]
                        after += 1
                    to = b.lookups[first, PIECES_TO]
                    piece = end - start if to == NONE else _piece_of(end - start, b.piece_keys)
                    unsent = np.int64(0)
                    at = start
                    lost = np.int64(0)
                    while at < end:
                        stop = min(end, at + piece)
                        # All pieces of an answer use the same bytes of the output, the round's first.
                        places = b.places[start : start + stop - at]
                        kind = t.values[index]
                        # The compiler drops the branches that this loop is not specialized for.
                        if wide and kind == FLOAT32:
                            lost += _answer(dim, wide_stride, FLOAT32, b, t, index, at, stop, places)
                        if half and kind == FLOAT16:
                            lost += _answer(dim, half_stride, FLOAT16, b, t, index, at, stop, places)
                        if byte and kind == INT8:
                            lost += _answer(dim, byte_stride, INT8, b, t, index, at, stop, places)
                        if to != NONE:
                            ends = HEAD_BYTES + 4 * dim * (stop - at)
                            if stop == end:
                                _mark(b, np.uint64(b.replies.ctypes.data) + np.uint64(ends), start, end - start, lost)
                                ends += (end - start + 7) // 8
                            if not send_bytes(b, counts, to, unsent, ends):
                                break
                            if stop == end:
                                finish(b, counts, to)
                            unsent = np.int64(HEAD_BYTES)  # the head was sent with the first piece
                        at = stop
                    counts[counters.MISSING] += lost
                    if to == NONE:
                        _mark_missing(b, dim, first, after, lost)
                    first = after
                send_round(b, counts)
                b.round[:] = 0
                counts[counters.IN_FLIGHT] = 0

    return serve
