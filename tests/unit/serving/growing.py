"""gRPC messages that are small on the wire and would be large as objects."""

from collections.abc import Callable


def nested(field: int, inside: bytes) -> bytes:
    length, size = len(inside), b""
    while length > 127:
        size += bytes([length & 127 | 128])
        length >>= 7
    return bytes([field << 3 | 2]) + size + bytes([length]) + inside


def request_of(inside: bytes) -> bytes:
    return nested(1, b"ctr") + nested(5, nested(1, b"line") + nested(2, b"BYTES") + inside)


SMALL_THAT_GROW: dict[str, Callable[[int], bytes]] = {
    "empty inputs": lambda size: nested(1, b"ctr") + b"\x2a\x00" * (size // 2),
    "empty raw entries": lambda size: nested(1, b"ctr") + b"\x3a\x00" * (size // 2),
    "empty lines": lambda size: request_of(nested(5, b"\x42\x00" * (size // 2))),
    "a packed shape": lambda size: request_of(nested(3, bytes(size))),
    "packed numbers": lambda size: request_of(nested(5, nested(5, bytes(size)))),
    "numbers one by one": lambda size: request_of(nested(5, b"\x28\x00" * (size // 2))),
    "parameters of an output": lambda size: nested(1, b"ctr") + nested(6, b"\x12\x00" * (size // 2)),
    "behind a group": lambda size: b"\x7b\x7c" + b"\x2a\x00" * (size // 2),
    "raw elements": lambda size: request_of(nested(3, b"\x01")) + nested(7, bytes(size)),
}
"""Messages of about so many bytes, by what they are full of."""
