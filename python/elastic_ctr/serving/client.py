"""A client of serving's binary door: blocking, or with many requests under way on its one connection.

    with ServingClient("127.0.0.1:8403") as client:
        feasigns, counts = client.encode([{"0": [17241709254077376921], "7": [5, 6]}])
        prediction = client.predict(feasigns, counts)
        prediction.probabilities, prediction.version

Nothing that the server sends is taken on trust. A connection that was lost is made again at the next request; what
was under way on it is raised as ServingUnavailable, and may be asked again: predictions change nothing.

The readers of cube have the head of frames in common with it, and no more: they know to the byte what a reply must be,
and take it on an event loop (`cube.client.connection`) or straight into one buffer (`cube.client.blocking`).
"""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from typing_extensions import Self

from elastic_ctr.features.slots import SlotList
from elastic_ctr.frames.wire import HEAD_BYTES, HELLO_BYTES, Head, WireError, check_protocol
from elastic_ctr.serving import wire
from elastic_ctr.serving.wire import Floats, Hello, Keys, Kind, Status

_READ = 1 << 18
_LARGEST_SLOT_LIST = 1 << 24


class ServingUnavailable(ConnectionError):
    """Serving cannot be reached, hung up, was silent for too long, or sent what is no reply."""


class PredictionRefused(ValueError):
    """Serving answered with a refusal: `status` and its sentence."""

    def __init__(self, status: Status, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Prediction(NamedTuple):
    """Probabilities f32 [rows] of a click, and the model version that they are of."""

    probabilities: Floats
    version: int


class ServingClient:
    """One connection. Not for several threads at once."""

    def __init__(self, address: str, *, timeout_seconds: float = 10.0) -> None:
        """`address` is host:port of the binary door. Raises ServingUnavailable when nothing answers there."""
        self.address = address
        self._timeout = timeout_seconds
        self._socket: socket.socket | None = None
        self._data = bytearray()
        self._hello = Hello()
        self._slots: SlotList | None = None
        self._check = 0
        self._next_id = 0
        # Requests under way, by id: their kind and rows.
        self._asked: dict[int, tuple[Kind, int]] = {}
        self._answers: dict[int, tuple[Head, bytes]] = {}
        self._connect()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._lost()

    # -- the slot list

    def slots(self) -> SlotList:
        """The slot list of the live version, asked for once. Raises PredictionRefused while there is none."""
        if self._slots is None:
            self._slots = self._ask_slots()
            self._check = wire.slot_list_check(self._slots)
        return self._slots

    def forget_slots(self) -> None:
        """Ask for the slot list again at the next request, as after `Status.OTHER_SLOTS`."""
        self._slots = None

    def encode(self, instances: Sequence[Mapping[str, Iterable[int]]]) -> tuple[Keys, npt.NDArray[np.int64]]:
        """(feasigns u64[n], counts i64[rows, slots]) of instances given as slot name to feasigns.

        Raises ValueError for a slot that the model does not have, or a feasign outside 0 … 2^64-1.
        """
        slots = self.slots()
        counts = np.zeros((len(instances), len(slots)), np.int64)
        feasigns: list[int] = []
        for row, instance in enumerate(instances):
            for name in instance:
                if name not in slots:
                    raise ValueError(f"instance {row} has the slot {name!r}, which the model does not have")
            for column, name in enumerate(slots):
                values = list(instance.get(name, ()))
                counts[row, column] = len(values)
                feasigns += values
        try:
            return np.array(feasigns, np.uint64), counts
        except OverflowError as wrong:
            raise ValueError("a feasign is not below 2^64, or is negative") from wrong

    # -- predictions

    def predict(self, feasigns: Keys, counts: npt.NDArray[np.integer[Any]]) -> Prediction:
        """Ask and wait.

        Args:
            feasigns: u64[n], by row, then by slot in the order of `slots()`.
            counts: whole numbers [rows, slots]: how many of them belong to each.

        Raises:
            PredictionRefused: serving says why.
            ServingUnavailable: see there.
            ValueError: the two do not fit together, or are more than one request takes.
        """
        return self.receive(self.send(feasigns, counts))

    def predict_each(
        self, requests: Iterable[tuple[Keys, npt.NDArray[np.integer[Any]]]], *, in_flight: int = 64
    ) -> Iterator[Prediction]:
        """Answers in the order of the requests, up to `in_flight` of them under way at once. Raises as `predict`."""
        under_way: deque[int] = deque()
        for feasigns, counts in requests:
            under_way.append(self.send(feasigns, counts))
            if len(under_way) >= in_flight:
                yield self.receive(under_way.popleft())
        while under_way:
            yield self.receive(under_way.popleft())

    def send(self, feasigns: Keys, counts: npt.NDArray[np.integer[Any]]) -> int:
        """Ask without waiting; `receive` takes the id that is returned. Raises as `predict`."""
        self.slots()
        limits = self._hello
        if len(counts) > limits.max_rows or len(feasigns) > limits.max_feasigns:
            raise ValueError(
                f"{len(counts)} rows with {len(feasigns)} feasigns are too many for one request; {limits.max_rows} and "
                f"{limits.max_feasigns} are allowed, send several"
            )
        request = self._next_id + 1
        frame = wire.pack_request(request, feasigns, counts, self._check)
        self._next_id = request
        self._write(frame, request, (Kind.PREDICT, len(counts)))
        return request

    def receive(self, request: int) -> Prediction:
        """Wait for the answer to an id, whatever order answers come in. Raises as `predict`."""
        head, body = self._wait_for(request)
        if head.code != Status.OK:
            if head.code == Status.OTHER_SLOTS:
                self.forget_slots()
            raise PredictionRefused(Status(head.code), body.decode("utf-8", "replace"))
        return Prediction(np.frombuffer(body, "<f4").astype(np.float32), head.version)

    # -- the connection

    def _connect(self) -> socket.socket:
        if self._socket is not None:
            return self._socket
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal():
            raise ServingUnavailable(f"{self.address!r} is no address: write host:port")
        try:
            connected = socket.create_connection((host.strip("[]"), int(port)), self._timeout)
        except (OSError, OverflowError) as failed:
            raise ServingUnavailable(f"{self.address} cannot be reached: {failed}") from failed
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connected.setblocking(False)
        self._socket = connected
        self._exchange(connected, Hello().pack())
        deadline = time.monotonic() + self._timeout
        while len(self._data) < HELLO_BYTES:
            self._read(connected, deadline)
        try:
            self._hello = Hello.unpack(bytes(self._data[:HELLO_BYTES]))
            check_protocol(self._hello.protocol, wire.PROTOCOL)
        except WireError as wrong:
            raise self._broken(str(wrong)) from wrong
        del self._data[:HELLO_BYTES]
        return connected

    def _lost(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._data.clear()
        self._asked.clear()

    def _broken(self, reason: str) -> ServingUnavailable:
        self._lost()
        return ServingUnavailable(f"{self.address}: {reason}")

    def _write(self, frame: bytes, request: int, asked: tuple[Kind, int]) -> None:
        connected = self._connect()
        self._asked[request] = asked
        self._exchange(connected, frame)

    def _exchange(self, connected: socket.socket, data: bytes) -> None:
        """Send all of it; what the server says meanwhile is read, or neither side would go on."""
        deadline = time.monotonic() + self._timeout
        rest = memoryview(data)
        while rest:
            sent = self._send_some(connected, rest)
            rest = rest[sent:]
            if not sent:
                self._read(connected, deadline, writing=True)

    def _send_some(self, connected: socket.socket, data: memoryview) -> int:
        try:
            return connected.send(data)
        except BlockingIOError:
            return 0
        except OSError as failed:
            raise self._broken(f"the connection was lost: {failed}") from failed

    def _read(self, connected: socket.socket, deadline: float, *, writing: bool = False) -> None:
        """Wait for the server, and take what it has sent."""
        left = max(0.0, deadline - time.monotonic())
        readable, writable, _ = select.select([connected], [connected] if writing else [], [], left)
        if readable:
            try:
                chunk = connected.recv(_READ)
            except BlockingIOError:
                return
            except OSError as failed:
                raise self._broken(f"the connection was lost: {failed}") from failed
            if not chunk:
                raise self._broken("it hung up")
            self._data += chunk
        elif not writable:
            raise self._broken(f"no answer within {self._timeout:g} s")

    def _wait_for(self, request: int) -> tuple[Head, bytes]:
        deadline = time.monotonic() + self._timeout
        while request not in self._answers:
            if request not in self._asked or self._socket is None:
                raise ServingUnavailable(f"{self.address}: request {request} is not under way; its connection was lost")
            if not self._take_replies():
                self._read(self._socket, deadline)
        return self._answers.pop(request)

    def _take_replies(self) -> bool:
        """Move whole replies out of what has been read; whether there were any."""
        data, at = self._data, 0
        try:
            while len(data) - at >= HEAD_BYTES:
                head = Head.peek(data, at)
                self._judge(head)
                if len(data) - at < head.frame_bytes:
                    break
                self._answers[head.id] = wire.unpack_reply(bytes(data[at : at + head.frame_bytes]))
                del self._asked[head.id]
                at += head.frame_bytes
        except WireError as wrong:
            raise self._broken(str(wrong)) from wrong
        del data[:at]
        return at > 0

    def _judge(self, head: Head) -> None:
        """Before the rest is waited for: a wrong length must not make us gather gigabytes."""
        asked = self._asked.get(head.id)
        if asked is None:
            raise WireError(f"it answers request {head.id}, which nobody asked")
        kind, rows = asked
        body = head.body_bytes
        if head.code != Status.OK:
            good = 0 <= body <= wire.MAX_SENTENCE
        elif kind == Kind.PREDICT:
            good = head.n == rows and body == 4 * rows
        else:
            good = 0 <= body <= _LARGEST_SLOT_LIST
        if not good:
            raise WireError(f"{head.n} values in {body} bytes answer request {head.id} of {rows} rows")

    def _ask_slots(self) -> SlotList:
        self._next_id += 1
        request = self._next_id
        self._write(wire.pack_slots_request(request), request, (Kind.SLOTS, 0))
        head, body = self._wait_for(request)
        text = body.decode("utf-8", "replace")
        if head.code != Status.OK:
            raise PredictionRefused(Status(head.code), text)
        try:
            slots = SlotList.parse(text)
        except ValueError as wrong:
            raise self._broken(f"its slot list cannot be: {wrong}") from wrong
        if len(slots) != head.n:
            raise self._broken(f"its slot list has {len(slots)} names where it says {head.n}")
        return slots
