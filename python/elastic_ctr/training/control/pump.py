"""Moves bytes between two connected sockets in both directions, until both ends are closed."""

import fcntl
import os
import select
import socket
import ssl
import threading
from contextlib import suppress

_PIPE_BYTES = 1 << 20
# A TLS record has at most 16 KiB; several are read at once.
_READ_BYTES = 1 << 16
# Reads of one direction before the other one gets its turn.
_TURN = 16


def pump(outside: socket.socket, inside: socket.socket) -> None:
    """Block until both directions have ended, then close both sockets. `outside` may be a TLS socket."""
    with outside, inside:
        if isinstance(outside, ssl.SSLSocket):
            _pump_in_tls(outside, inside)
            return
        outside.setblocking(True)
        inside.setblocking(True)
        # Created before either direction begins, so that a lack of pipes fails the whole connection.
        pipes = _pipes()
        other = threading.Thread(target=_move, args=(inside, outside, *pipes[0]), daemon=True)
        try:
            other.start()
        except RuntimeError:
            for each in (*pipes[0], *pipes[1]):
                os.close(each)
            raise
        _move(outside, inside, *pipes[1])
        other.join()


def _pipes() -> tuple[tuple[int, int], tuple[int, int]]:
    """Return two pipes. If it raises OSError, none is open."""
    first = os.pipe()
    try:
        return first, os.pipe()
    except OSError:
        for each in first:
            os.close(each)
        raise


def _move(source: socket.socket, sink: socket.socket, out: int, into: int) -> None:
    """Move one direction within the kernel, by `splice` through a pipe, and close the pipe."""
    try:
        with suppress(OSError):  # beyond the user's limit the pipe keeps its default size
            fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        while moved := os.splice(source.fileno(), into, _PIPE_BYTES):
            while moved:
                moved -= os.splice(out, sink.fileno(), moved)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
    except OSError:
        # One end is gone: the other direction must not wait for it.
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(out)
        os.close(into)


def _pump_in_tls(outside: ssl.SSLSocket, inside: socket.socket) -> None:
    """Move both directions in one thread, because a TLS connection must not be read and written at the same time.

    It ends with the first direction that ends: one half of a TLS connection cannot be closed without giving up TLS in the other.
    """
    outside.setblocking(False)
    inside.setblocking(False)
    flows = (_Flow(outside, inside), _Flow(inside, outside))
    try:
        while not any(flow.over for flow in flows):
            wanted = dict.fromkeys((outside.fileno(), inside.fileno()), 0)
            busy = False
            for flow in flows:
                busy |= flow.step(wanted)
            if any(flow.over for flow in flows) or busy:
                continue
            # Descriptors without events are left out, because one that its peer has closed would wake the loop again and again.
            poller = select.poll()
            for descriptor, events in wanted.items():
                if events:
                    poller.register(descriptor, events)
            poller.poll()
    except OSError:
        return


class _Flow:
    """One direction of a TLS connection."""

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self._source, self._sink = source, sink
        self._buffer = bytearray(_READ_BYTES)
        self._pending = memoryview(b"")
        self.over = False

    def step(self, wanted: dict[int, int]) -> bool:
        """Move the bytes that are ready, and add the events that it waits for to `wanted`. Return True if there is more to move.

        Raises OSError if one end is gone.
        """
        for _ in range(_TURN):
            if self.over:
                return False
            if not self._pending:
                try:
                    read = self._source.recv_into(self._buffer)
                except ssl.SSLWantWriteError:
                    wanted[self._source.fileno()] |= select.POLLOUT
                    return False
                except (ssl.SSLWantReadError, BlockingIOError):
                    wanted[self._source.fileno()] |= select.POLLIN
                    return False
                if not read:
                    self.over = True
                    return False
                self._pending = memoryview(self._buffer)[:read]
            try:
                self._pending = self._pending[self._sink.send(self._pending) :]
            except ssl.SSLWantReadError:
                wanted[self._sink.fileno()] |= select.POLLIN
                return False
            except (ssl.SSLWantWriteError, BlockingIOError):
                wanted[self._sink.fileno()] |= select.POLLOUT
                return False
        return True
