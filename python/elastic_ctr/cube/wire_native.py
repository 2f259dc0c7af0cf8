"""`wire` in machine code, on addresses that the caller has checked."""

from typing import Any

import numpy as np

from elastic_ctr.machine_code.compiled import compiled
from elastic_ctr.machine_code.intrinsics import load_u16, load_u32, store_u16, store_u32, store_u64

_4, _6, _8, _12, _20 = (np.uint64(offset) for offset in (4, 6, 8, 12, 20))


def magic_number(magic: bytes) -> np.uint32:
    """Return the first four bytes of a hello as compiled code reads them."""
    return np.uint32(int.from_bytes(magic, "little"))


@compiled
def put_head(to: Any, length: Any, code: Any, flags: Any, n: Any, request: Any, version: Any) -> None:
    """Write the head of a frame of `length` bytes in all."""
    store_u32(to, np.uint32(length - 4))
    store_u16(to + _4, np.uint16(code))
    store_u16(to + _6, np.uint16(flags))
    store_u32(to + _8, np.uint32(n))
    store_u64(to + _12, np.uint64(request))
    store_u64(to + _20, np.uint64(version))


@compiled
def put_hello(to: Any, magic: Any, protocol: Any, first: Any, second: Any, third: Any) -> None:
    store_u32(to, magic)
    store_u16(to + _4, np.uint16(protocol))
    store_u16(to + _6, np.uint16(first))
    store_u32(to + _8, np.uint32(second))
    store_u32(to + _12, np.uint32(third))


@compiled
def greets(from_: Any, magic: Any, protocol: Any) -> Any:
    """True if these 16 bytes are a hello with that magic and protocol."""
    return load_u32(from_) == magic and load_u16(from_ + _4) == np.uint16(protocol)
