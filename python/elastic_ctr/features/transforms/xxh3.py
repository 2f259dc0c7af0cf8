"""XXH3's 64-bit hash of many texts at once, each after one prefix: the keys of categorical values.

The algorithm is that of the xxHash specification (github.com/Cyan4973/xxHash, doc/xxhash_spec.md, "XXH3 algorithm overview"), with
seed 0 and the default secret. The library `xxhash` hashes one text a call; a test compares both at every length.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.formats.keys import Keys
from elastic_ctr.machine_code.compiled import compiled, compiled_inline
from elastic_ctr.machine_code.intrinsics import copy_bytes, high64, load_u8, load_u32, load_u64

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
        "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
        "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    dtype=np.uint8,
)
_PRIME_32_1, _PRIME_32_2, _PRIME_32_3 = (np.uint64(prime) for prime in (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D))
_PRIME_64_1, _PRIME_64_2 = np.uint64(0x9E3779B185EBCA87), np.uint64(0xC2B2AE3D27D4EB4F)
_PRIME_64_3, _PRIME_64_4 = np.uint64(0x165667B19E3779F9), np.uint64(0x85EBCA77C2B2AE63)
_PRIME_64_5 = np.uint64(0x27D4EB2F165667C5)
_MIX_1, _MIX_2 = np.uint64(0x165667919E3779F9), np.uint64(0x9FB21C651E98DF25)
_START = np.array(
    [_PRIME_32_3, _PRIME_64_1, _PRIME_64_2, _PRIME_64_3, _PRIME_64_4, _PRIME_32_2, _PRIME_64_5, _PRIME_32_1], np.uint64
)
_LOW = np.uint64(0xFFFF_FFFF)
_STRIPE_BYTES, _BLOCK_STRIPES, _SECRET_BYTES = 64, 16, 192
_0, _1, _4, _8, _16, _24, _28, _29, _32, _33, _35, _37, _47, _49, _64 = (
    np.uint64(number) for number in (0, 1, 4, 8, 16, 24, 28, 29, 32, 33, 35, 37, 47, 49, 64)
)


@compiled
def _rotated(x: Any, bits: Any) -> Any:
    return (x << bits) | (x >> (_64 - bits))


@compiled
def _with_bytes_swapped(x: Any) -> Any:
    x = ((x & np.uint64(0x00FF00FF00FF00FF)) << _8) | ((x >> _8) & np.uint64(0x00FF00FF00FF00FF))
    x = ((x & np.uint64(0x0000FFFF0000FFFF)) << _16) | ((x >> _16) & np.uint64(0x0000FFFF0000FFFF))
    return (x << _32) | (x >> _32)


@compiled
def _folded(a: Any, b: Any) -> Any:
    """Return the XOR of both halves of the 128-bit product."""
    return (a * b) ^ high64(a, b)


@compiled
def _avalanche(x: Any) -> Any:
    x ^= x >> _37
    x *= _MIX_1
    return x ^ (x >> _32)


@compiled
def _avalanche_of_xxh64(x: Any) -> Any:
    x ^= x >> _33
    x *= _PRIME_64_2
    x ^= x >> _29
    x *= _PRIME_64_3
    return x ^ (x >> _32)


@compiled_inline
def _of_9_to_16(first: Any, last: Any, length: Any, secret: Any) -> Any:
    """Hash 9 to 16 bytes, given by the first and the last eight."""
    low = first ^ load_u64(secret + _24) ^ load_u64(secret + _32)
    high = last ^ load_u64(secret + np.uint64(40)) ^ load_u64(secret + np.uint64(48))
    return _avalanche(length + _with_bytes_swapped(low) + high + _folded(low, high))


@compiled_inline
def _of_4_to_8(first: Any, last: Any, length: Any, secret: Any) -> Any:
    """Hash 4 to 8 bytes, given by the first and the last four."""
    x = (last + (first << _32)) ^ load_u64(secret + _8) ^ load_u64(secret + _16)
    x ^= _rotated(x, _49) ^ _rotated(x, _24)
    x *= _MIX_2
    x ^= (x >> _35) + length
    x *= _MIX_2
    return x ^ (x >> _28)


@compiled_inline
def hash_of_two(prefix: Any, before: Any, text: Any, size: Any, secret: Any) -> Any:
    """XXH3 of a prefix and a text of 4 to 16 bytes together, without a copy; all are u64.

    Args:
        prefix: the bytes of the prefix, the first one lowest, then zeros.
        before: the number of these bytes, from 1 to 7.
        text: the address of the text, at which eight bytes must be readable.
        size: the bytes of the text.
        secret: the address of SECRET.
    """
    length = before + size
    word = load_u64(text)
    shift = _8 * before
    if size >= _8:
        return _of_9_to_16(prefix | (word << shift), load_u64(text + size - _8), length, secret)
    word &= (_1 << (_8 * size)) - _1
    low, high = prefix | (word << shift), word >> (_64 - shift)
    if length > _8:
        last = (low >> (_8 * (length - _8))) | (high << (_8 * (_16 - length)))
        return _of_9_to_16(low, last, length, secret)
    return _of_4_to_8(low & _LOW, (low >> (_8 * (length - _4))) & _LOW, length, secret)


@compiled
def _up_to_16(at: Any, length: Any, secret: Any) -> Any:
    if length > 8:
        return _of_9_to_16(load_u64(at), load_u64(at + length - _8), length, secret)
    if length > 3:
        return _of_4_to_8(np.uint64(load_u32(at)), np.uint64(load_u32(at + length - _4)), length, secret)
    if length > 0:
        first, middle = np.uint64(load_u8(at)), np.uint64(load_u8(at + (length >> _1)))
        last = np.uint64(load_u8(at + length - _1))
        x = (first << _16) | (middle << _24) | last | (length << _8)
        return _avalanche_of_xxh64(x ^ np.uint64(load_u32(secret)) ^ np.uint64(load_u32(secret + np.uint64(4))))
    return _avalanche_of_xxh64(load_u64(secret + np.uint64(56)) ^ load_u64(secret + np.uint64(64)))


@compiled
def _mixed(at: Any, secret: Any) -> Any:
    """Mix 16 bytes with 16 bytes of the secret."""
    return _folded(load_u64(at) ^ load_u64(secret), load_u64(at + _8) ^ load_u64(secret + _8))


@compiled
def _up_to_128(at: Any, length: Any, secret: Any) -> Any:
    x = length * _PRIME_64_1
    end = at + length
    for step in range(np.int64((length - _1) >> np.uint64(5)), -1, -1):
        place = np.uint64(16 * step)
        x += _mixed(at + place, secret + place + place)
        x += _mixed(end - place - _16, secret + place + place + _16)
    return _avalanche(x)


@compiled
def _up_to_240(at: Any, length: Any, secret: Any) -> Any:
    x = length * _PRIME_64_1
    for step in range(8):
        place = np.uint64(16 * step)
        x += _mixed(at + place, secret + place)
    x = _avalanche(x)
    for step in range(8, np.int64(length >> np.uint64(4))):
        place = np.uint64(16 * step)
        x += _mixed(at + place, secret + place - np.uint64(125))
    x += _mixed(at + length - _16, secret + np.uint64(119))
    return _avalanche(x)


@compiled
def _take_stripe(at: Any, secret: Any, sums: Any) -> None:
    for lane in range(8):
        place = np.uint64(8 * lane)
        value = load_u64(at + place)
        keyed = value ^ load_u64(secret + place)
        sums[lane ^ 1] += value
        sums[lane] += (keyed & _LOW) * (keyed >> _32)


@compiled
def _longer(at: Any, length: Any, secret: Any, sums: Any) -> Any:
    for lane in range(8):
        sums[lane] = _START[lane]
    # The last stripe ends at the end of the text and uses another part of the secret.
    for stripe in range(np.int64((length - _1) >> np.uint64(6))):
        in_block = stripe % _BLOCK_STRIPES
        _take_stripe(at + np.uint64(_STRIPE_BYTES * stripe), secret + np.uint64(8 * in_block), sums)
        if in_block == _BLOCK_STRIPES - 1:
            for lane in range(8):
                key = load_u64(secret + np.uint64(_SECRET_BYTES - _STRIPE_BYTES + 8 * lane))
                sums[lane] = (sums[lane] ^ (sums[lane] >> _47) ^ key) * _PRIME_32_1
    _take_stripe(at + length - _64, secret + np.uint64(_SECRET_BYTES - _STRIPE_BYTES - 7), sums)
    x = length * _PRIME_64_1
    for pair in range(4):
        place = secret + np.uint64(11 + 16 * pair)
        x += _folded(sums[2 * pair] ^ load_u64(place), sums[2 * pair + 1] ^ load_u64(place + _8))
    return _avalanche(x)


@compiled
def hash_of(at: Any, length: Any, secret: Any, sums: Any) -> Any:
    """Return XXH3 of the `length` bytes at `at`. All three are u64; `secret` is the address of SECRET, `sums` is scratch u64[8]."""
    if length <= np.uint64(16):
        return _up_to_16(at, length, secret)
    if length <= np.uint64(128):
        return _up_to_128(at, length, secret)
    if length <= np.uint64(240):
        return _up_to_240(at, length, secret)
    return _longer(at, length, secret, sums)


@compiled
def _hash_all(secrets: Any, prefix: Any, texts: Any, offsets: Any, room: Any, sums: Any, hashes: Any) -> None:
    secret, target = np.uint64(secrets.ctypes.data), np.uint64(room.ctypes.data)
    source, before = np.uint64(texts.ctypes.data), np.uint64(prefix.size)
    copy_bytes(target, np.uint64(prefix.ctypes.data), before)
    for number in range(hashes.size):
        size = np.uint64(offsets[number + 1] - offsets[number])
        copy_bytes(target + before, source + np.uint64(offsets[number]), size)
        hashes[number] = hash_of(target, before + size, secret, sums)


def hashes_of(prefix: bytes, texts: Bytes, offsets: Offsets) -> Keys:
    """Return u64[n]: XXH3 of `prefix` and text i, which is `texts[offsets[i]:offsets[i + 1]]`; offsets is i64[n + 1].

    Raises:
        ValueError: an offset lies outside the texts or before the offset before it.
    """
    lengths = np.diff(offsets)
    if len(offsets) == 0 or offsets[0] < 0 or offsets[-1] > texts.size or (lengths < 0).any():
        raise ValueError("the offsets of the texts do not rise from 0 to their end.")
    hashes = np.empty(len(offsets) - 1, np.uint64)
    room = np.empty(len(prefix) + int(lengths.max(initial=0)) + 1, np.uint8)
    _hash_all(
        SECRET, np.frombuffer(prefix, np.uint8), np.ascontiguousarray(texts), np.ascontiguousarray(offsets), room,
        np.empty(8, np.uint64), hashes,
    )  # fmt: skip
    return hashes


Words = npt.NDArray[np.uint64]

GAMMA = np.uint64(0x9E3779B97F4A7C15)
"""The step of splitmix64 from one word to the next."""


def mixed(words: Words) -> Words:
    """Mix words as splitmix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014).

    It maps u64 by a bijection in which each bit of a result depends on all bits of its word, so that words look random.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    found: Words = words ^ (words >> np.uint64(31))
    return found
