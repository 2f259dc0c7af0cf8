"""The batches of the native HTTP frontend: one call recognizes and reads everyday requests, another one answers them.

HTTP is not parsed here. A head must match one that `runtime.http_reader` has read before (`templates`), and `elasticctr_json.scan` or
`json_scan` must be able to read the body; otherwise the connection moves to the fallback frontend with all unread input. Input is used
only after its length was checked.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.formats.inputs import InputColumns
from elastic_ctr.formats.json_scan import SHORTEST_ROW, CellRoom, GroupRoom, JsonColumns, new_cells, scan_instances
from elastic_ctr.formats.json_scan import scan_candidates as scan_candidate_rows
from elastic_ctr.machine_code.compiled import compiled
from elastic_ctr.machine_code.intrinsics import copy_bytes, load_u16, load_u32
from elastic_ctr.machine_code.sockets import CLOSED, INPUT, LARGE, STATE, consume, reserve
from elastic_ctr.serving.frontends import connections, templates
from elastic_ctr.serving.protocols.elasticctr_json import SHORTEST_FEASIGN, SHORTEST_INSTANCE, scan, scan_candidates

# Reasons to set a connection aside: its head is unknown; the JSON in front of its tensors is unknown; it moves to the
# fallback frontend; no version is live, to which the kind of the request is added.
UNKNOWN, UNKNOWN_TENSORS, HANDS_OVER, NO_VERSION = range(4)
# A batch's totals, i64: rows, feasigns, requests, bytes of bodies and of the texts written after them, shared parts and their feasigns.
ROWS, FEASIGNS, REQUESTS, BODIES, GROUPS, GROUP_FEASIGNS, TAKEN_WIDTH = range(7)
# A request of the batch, i64: its connection, its rows, the group of its shared part or -1, the best rows that it wants or 0, its body,
# the bytes of JSON in front of binary tensors, 0 if it has none, and the kind of its head.
(
    REQUEST_FD, REQUEST_SERIAL, REQUEST_ROWS, REQUEST_GROUP, REQUEST_TOP, BODY_AT, BODY_BYTES, JSON_BYTES, REQUEST_KIND, REQUEST_WIDTH,
) = range(10)  # fmt: skip
# Most bytes of a reply without its rows, of a row with its place, and of a refusal in place of the reply.
REPLY_BYTES, ROW_BYTES = 200, 80
LEAST_REPLY = 4096

_PASSES = 8
_NONE = -1


class Batch(NamedTuple):
    """Requests that are submitted to the batcher as one request."""

    taken: NDArray[np.int64]  # [TAKEN_WIDTH]
    feasigns: NDArray[np.uint64]
    lengths: NDArray[np.int64]  # rows x slots
    requests: NDArray[np.int64]  # [most, REQUEST_WIDTH]
    bodies: NDArray[np.uint8]  # HTTP bodies; after a body of rows of columns also the texts made of its lists
    cells: CellRoom  # the cells of rows of columns, whose texts are in `bodies`
    # Shared parts, by group.
    group_feasigns: NDArray[np.uint64]
    group_lengths: NDArray[np.int64]  # groups x slots
    group_cells: GroupRoom


def new_batch(requests: int, feasigns: int, lengths: int, bodies: int) -> Batch:
    """Return a batch with room for this many, at least one of each; pages take memory once they are written."""
    return Batch(
        np.zeros(TAKEN_WIDTH, np.int64),
        reserve(8 * max(feasigns, 1)).view(np.uint64),
        reserve(8 * max(lengths, 1)).view(np.int64),
        np.zeros((requests, REQUEST_WIDTH), np.int64),
        reserve(max(bodies, 1)),
        cells := new_cells(0, InputColumns((), ())),
        reserve(8 * max(feasigns, 1)).view(np.uint64),
        reserve(8 * requests).view(np.int64),
        GroupRoom(cells, cells, np.zeros((0, 0), np.bool_)),
    )


def fitted(batch: Batch, rows: int, slots: int, inputs: InputColumns | None) -> Batch:
    """Return the batch with room for so many rows of so many slots, or of the columns `inputs`."""
    groups = len(batch.requests)
    # There is a length for each slot of each row.
    if batch.lengths.size != rows * slots:
        lengths, group_lengths = (reserve(8 * count * slots).view(np.int64) for count in (rows, groups))
        batch = batch._replace(lengths=lengths, group_lengths=group_lengths)
    if inputs is None:
        return batch
    texts, numbers = len(inputs.texts), len(inputs.numbers)
    if (batch.cells.begins.shape, batch.cells.numbers.shape) != ((rows, texts), (rows, numbers)):
        cells = _reserved_cells(rows, texts, numbers)
        of_groups = _reserved_cells(groups, texts, numbers)._replace(written=cells.written)
        given = reserve(max(groups * (texts + numbers), 1))[: groups * (texts + numbers)].view(np.bool_)
        batch = batch._replace(
            cells=cells, group_cells=GroupRoom(cells, of_groups, given.reshape(groups, texts + numbers))
        )
    return batch


def _reserved_cells(rows: int, texts: int, numbers: int) -> CellRoom:
    """Return room for this many rows; pages take memory once they are written."""
    return CellRoom(
        reserve(8 * max(rows * texts, 1)).view(np.int64)[: rows * texts].reshape(rows, texts),
        reserve(8 * max(rows * texts, 1)).view(np.int64)[: rows * texts].reshape(rows, texts),
        reserve(8 * max(rows * numbers, 1)).view(np.float64)[: rows * numbers].reshape(rows, numbers),
        np.zeros(1, np.int64),
    )


class Rules(NamedTuple):
    """The schema that requests are read for, known heads, and limits of requests."""

    names: NDArray[np.uint8]
    ends: NDArray[np.int64]  # [slots]; empty: no version is live
    heads: templates.TemplateTable
    tensors: templates.TemplateTable  # the JSON in front of binary tensors, of this slot list
    max_body: int
    max_rows: int
    max_scanned: int  # bytes of bodies in one batch
    of_columns: bool  # the model takes rows of these columns
    columns: JsonColumns


@compiled
def owed(rows: Any) -> Any:
    """Return the most bytes of the reply to this many rows, or of the refusal in its place."""
    return max(REPLY_BYTES + ROW_BYTES * rows, LEAST_REPLY)


@compiled
def _lengths(at: Any, width: Any, cells: Any, lengths: Any) -> Any:
    """Read lengths of `width` bytes from an address. Return their sum."""
    total = np.int64(0)
    for cell in range(cells):
        place = at + np.uint64(width * cell)
        value = np.int64(load_u16(place)) if width == 2 else np.int64(load_u32(place))
        lengths[cell] = value
        total += value
    return total


@compiled
def _tensors(data: Any, at: Any, size: Any, rules: Any, row: Any, own: Any, shared: Any) -> Any:
    """Read the `size` bytes of two tensors whose form was found into (feasigns, lengths) of rows, and of a shared first row.

    Return (rows, feasigns, shared feasigns); the last is -1 if no row is shared, the first -1 if they are invalid.
    """
    (feasigns, lengths), (of_group, group_lengths) = own, shared
    none = np.int64(_NONE)
    nothing = none, np.int64(0), none
    numbers = rules.tensors.numbers
    given, n = numbers[templates.ROWS], numbers[templates.FEASIGN_COUNT]
    kind = rules.tensors.kinds[row[connections.BODY_FORM]]
    width = abs(kind) & templates.WIDTH
    first = np.int64(1) if abs(kind) > templates.WIDTH else np.int64(0)
    rows = given - first
    slots = rules.ends.size
    cells = rows * slots
    length_bytes = width * given * slots
    if (
        rows < 1 or rows > rules.max_rows or n > feasigns.size or n > of_group.size or cells > lengths.size
        or first * slots > group_lengths.size
        or numbers[templates.FEASIGN_BYTES] != 8 * n or numbers[templates.LENGTH_BYTES] != length_bytes
        or size != 8 * n + length_bytes
    ):  # fmt: skip
        return nothing
    counts = np.uint64(data.ctypes.data) + np.uint64(at + (8 * n if kind > 0 else 0))
    common = _lengths(counts, width, first * slots, group_lengths)
    n -= common
    if _lengths(counts + np.uint64(width * first * slots), width, cells, lengths) != n:
        return nothing
    if first > 0:
        for cell in range(cells):
            if lengths[cell] > 0 and group_lengths[cell % slots] > 0:
                return nothing
    values = np.uint64(data.ctypes.data) + np.uint64(at + (0 if kind > 0 else length_bytes))
    copy_bytes(np.uint64(of_group.ctypes.data), values, np.uint64(8 * common))
    copy_bytes(np.uint64(feasigns.ctypes.data), values + np.uint64(8 * common), np.uint64(8 * n))
    return rows, n, common if first > 0 else none


@compiled
def _take(b: Any, batch: Any, rules: Any, fd: Any, now: Any) -> Any:
    """Take every whole request that the connection has sent. Return True if the batch is full before."""
    row = b.sockets.connections[fd]
    data = b.sockets.inputs
    base = fd * b.sockets.input_bytes
    slots = rules.ends.size
    have = row[INPUT]
    at = np.int64(0)
    full = False
    stopped = False
    row[connections.WHOLE] = 0
    while row[connections.HANDING_OVER] == 0 and at < have:
        if not connections.has_output_budget(b, row, LEAST_REPLY):
            stopped = True
            break
        if (
            b.shared[connections.ASIDE] == b.aside.shape[0] or batch.taken[REQUESTS] == batch.requests.shape[0]
            or batch.taken[BODIES] > rules.max_scanned
        ):  # fmt: skip
            full = True
            break
        head = templates.find_form(data, base + at, have - at, False, rules.heads, row, connections.HEAD)
        if head < 0:
            connections.set_aside(b, fd, row[connections.SERIAL], UNKNOWN)
            stopped = True
            break
        length = rules.heads.numbers[templates.LENGTH]
        kind = rules.heads.kinds[row[connections.HEAD]]
        json = rules.heads.numbers[templates.JSON_LENGTH] if kind == templates.TENSORS else np.int64(0)
        if length > rules.max_body or head + length > b.sockets.input_bytes:
            row[connections.HANDING_OVER] = 1
            break
        if have - at < head + length:
            row[connections.WHOLE] = head + length
            break
        if slots == 0:
            connections.set_aside(b, fd, row[connections.SERIAL], NO_VERSION + kind)
            row[connections.OWED] += LEAST_REPLY
            row[connections.IN_FLIGHT] += 1
            row[connections.SINCE] = now
            at += head + length
            continue
        if rules.of_columns != (kind == templates.COLUMNS):
            row[connections.HANDING_OVER] = 1
            break
        # The texts made of lists take at most as many bytes as the body.
        room = 2 * length if rules.of_columns else length
        if batch.taken[REQUESTS] > 0 and batch.taken[BODIES] + room > batch.bodies.size:
            full = True
            break
        if batch.taken[BODIES] + room > batch.bodies.size:
            row[connections.HANDING_OVER] = 1
            break
        begin = base + at + head
        taken_before = batch.taken[ROWS]
        place = batch.taken[BODIES]
        to = np.uint64(batch.bodies.ctypes.data) + np.uint64(place)
        copy_bytes(to, np.uint64(data.ctypes.data) + np.uint64(begin), np.uint64(length))
        feasigns, lengths = batch.feasigns[batch.taken[FEASIGNS] :], batch.lengths[taken_before * slots :]
        group = batch.taken[GROUPS]
        of_group, group_lengths = (
            batch.group_feasigns[batch.taken[GROUP_FEASIGNS] :],
            batch.group_lengths[group * slots :],
        )
        n, top = np.int64(0), np.int64(0)
        # Feasigns of the shared part; -1 for a request without one.
        shared = np.int64(_NONE)
        most_rows = rules.max_rows
        if rules.of_columns:
            most_rows = min(most_rows, batch.cells.begins.shape[0] - taken_before)
            batch.cells.written[0] = place + length
            rows = scan_instances(
                batch.bodies, place, place + length, rules.columns, batch.cells, taken_before, most_rows
            )
            if rows < 0:
                batch.cells.written[0] = place + length
                room = batch.group_cells
                rows, top = scan_candidate_rows(
                    batch.bodies, place, place + length, rules.columns, room, group, taken_before, most_rows
                )
                shared = np.int64(0) if rows > 0 else shared
        elif json == 0:
            body = batch.bodies[place : place + length]
            rows, n = scan(body, rules.names, rules.ends, rules.max_rows, feasigns, lengths)
            if rows < 0:
                rows, n, shared, top = scan_candidates(
                    body, rules.names, rules.ends, rules.max_rows, feasigns, lengths, of_group, group_lengths
                )
        elif (
            json > length or templates.find_form(data, begin, json, True, rules.tensors, row, connections.BODY_FORM) < 0
        ):
            connections.set_aside(b, fd, row[connections.SERIAL], UNKNOWN_TENSORS)
            stopped = True
            break
        else:
            rows, n, shared = _tensors(
                data, begin + json, length - json, rules, row, (feasigns, lengths), (of_group, group_lengths)
            )
        if rows < 0 and batch.taken[REQUESTS] > 0:
            # If the room exceeds the most that this body can contain, lack of room is not why it was not read.
            if rules.of_columns:
                lacking = min(length // SHORTEST_ROW + 1, rules.max_rows) > most_rows
            else:
                most = min(length // (SHORTEST_INSTANCE if json == 0 else 2 * slots) + 1, rules.max_rows)
                shortest = min(feasigns.size, of_group.size)
                lacking = length // SHORTEST_FEASIGN > shortest or most * slots > lengths.size
            if lacking:
                full = True
                break
        if rows < 0:
            row[connections.HANDING_OVER] = 1
            break
        reply = owed(rows)
        if not connections.has_output_budget(b, row, reply):
            # The reply fits once the others are sent, because `owed(max_rows)` fits into an empty output buffer.
            stopped = True
            break
        number = batch.taken[REQUESTS]
        batch.requests[number, REQUEST_FD], batch.requests[number, REQUEST_SERIAL] = fd, row[connections.SERIAL]
        batch.requests[number, REQUEST_ROWS], batch.requests[number, REQUEST_TOP] = rows, min(top, rows)
        batch.requests[number, REQUEST_GROUP] = _NONE
        if shared >= 0:
            batch.requests[number, REQUEST_GROUP] = group
            batch.taken[GROUPS] += 1
            batch.taken[GROUP_FEASIGNS] += shared
        batch.requests[number, BODY_AT], batch.requests[number, BODY_BYTES] = place, length
        batch.requests[number, JSON_BYTES] = json
        batch.requests[number, REQUEST_KIND] = kind
        batch.taken[REQUESTS] = number + 1
        batch.taken[ROWS] += rows
        batch.taken[FEASIGNS] += n
        batch.taken[BODIES] = batch.cells.written[0] if rules.of_columns else place + length
        row[connections.OWED] += reply
        row[connections.IN_FLIGHT] += 1
        row[connections.SINCE] = now
        at += head + length
    consume(b.sockets, fd, at)
    connections.account_input(b, fd)
    more = full or stopped
    if b.shared[connections.PENDING_BYTES] > b.max_pending and row[connections.ACCOUNTED] > 0 and not more:
        # The fallback frontend enforces the limit of all bodies together.
        row[connections.HANDING_OVER] = 1
    connections.set_pending_input(b, row, 1 if more else 0)
    _hand_over(b, fd)
    connections.update_interest(b, fd, now)
    return full


@compiled
def _hand_over(b: Any, fd: Any) -> None:
    """Set the connection aside if it moves to the fallback frontend, as one that is half closed within a request does."""
    row = b.sockets.connections[fd]
    if row[connections.HALF_CLOSED] != 0 and row[connections.PENDING_INPUT] == 0 and row[INPUT] > 0:
        row[connections.HANDING_OVER] = 1
    if row[connections.HANDING_OVER] != 0 and not connections.set_aside(b, fd, row[connections.SERIAL], HANDS_OVER):
        connections.hang_up(b, fd)


@compiled
def gather(b: Any, batch: Any, rules: Any, now: Any) -> None:
    """Fill an empty batch with the requests of all ready connections, without waiting. `now` is in milliseconds."""
    batch.taken[:] = 0
    b.shared[connections.ASIDE] = 0
    full = False
    for _ in range(_PASSES):
        found, more = connections.ready(b, now)
        for number in range(found):
            fd = b.ready[number, 0]
            row = b.sockets.connections[fd]
            if full or row[STATE] == CLOSED or row[connections.HANDING_OVER] != 0:
                continue
            if b.ready[number, 1] == 0:
                full = _take(b, batch, rules, fd, now)
                continue
            # The rest of a large body has often arrived already.
            again = True
            while again and connections.receive(b, fd, max(LARGE, row[connections.WHOLE]), now):
                full = _take(b, batch, rules, fd, now)
                again = row[STATE] != CLOSED and row[connections.WHOLE] > LARGE and row[INPUT] < row[connections.WHOLE]
            if row[STATE] != CLOSED and row[connections.HANDING_OVER] == 0:
                _hand_over(b, fd)
        if full or not more:
            break
