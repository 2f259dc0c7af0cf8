"""A chunked body (RFC 9112, 7.1). Chunk extensions and trailers are read within limits and dropped."""

from __future__ import annotations

import re

from elastic_ctr.serving.request_error import RequestError

_TEXT = rb"[\t\x20-\x7e\x80-\xff]*"
_SIZE_LINE = re.compile(rb"([0-9A-Fa-f]{1,15})(?:[ \t]*;%b)?\r\n" % _TEXT)
_TRAILER = re.compile(rb"[!#$%%&'*+\-.^_`|~0-9A-Za-z]+:%b\r\n" % _TEXT)
_CRLF = b"\r\n"
_SIZE, _DATA, _DATA_END, _TRAILERS = range(4)
# What the framing of a chunk may take beside twice its data; more adds up to at most a head's limit.
_USUAL_FRAMING = 16


class ChunkedBody:
    """Takes the body out of the input as it comes. `size` is the bytes of `body`, and of the chunk that has begun."""

    def __init__(self, max_framing_bytes: int, max_trailers: int) -> None:
        self.body = bytearray()
        self.size = 0
        self._max_framing_bytes = max_framing_bytes
        self._max_trailers = max_trailers
        self._framing = 0
        self._trailers = 0
        self._state = _SIZE
        self._close_idle = 0

    def take(self, data: bytearray) -> bool:
        """Take from the front of `data` what belongs to the body; whether that was all. Raises RequestError."""
        at = 0
        while True:
            if self._state == _DATA:
                part = min(self._close_idle, len(data) - at)
                self.body += data[at : at + part]
                at += part
                self._close_idle -= part
                if self._close_idle:
                    break
                self._state = _DATA_END
            elif self._state == _DATA_END:
                if len(data) - at < len(_CRLF):
                    break
                if not data.startswith(_CRLF, at):
                    raise RequestError(400, "a chunk of the body is longer than it says")
                at += len(_CRLF)
                self._state = _SIZE
            else:
                end = data.find(b"\n", at) + 1
                if not end:
                    self._count(len(data) - at, 0)
                    break
                if self._state == _SIZE:
                    self._begin_chunk(data, at, end)
                elif end - at == len(_CRLF) and data.startswith(_CRLF, at):
                    del data[:end]
                    return True
                else:
                    self._framing += self._count(end - at, 0)
                    self._trailers += 1
                    if self._trailers > self._max_trailers or _TRAILER.fullmatch(data, at, end) is None:
                        raise RequestError(400, "the body has too many trailers, or one that is none")
                at = end
        del data[:at]
        return False

    def _begin_chunk(self, data: bytearray, at: int, end: int) -> None:
        line = _SIZE_LINE.fullmatch(data, at, end)
        if line is None:
            raise RequestError(400, "a chunk of the body does not begin with its size")
        self._close_idle = int(line[1], 16)
        self.size += self._close_idle
        self._framing += self._count(end - at, _USUAL_FRAMING + 2 * self._close_idle)
        self._state = _DATA if self._close_idle else _TRAILERS

    def _count(self, size: int, usual: int) -> int:
        """Bytes of framing beyond the usual."""
        more = max(size - usual, 0)
        if self._framing + more > self._max_framing_bytes:
            raise RequestError(431, "chunk extensions and trailers of the body are too long; send less")
        return more
