"""LLVM intrinsics that numba lacks: prefetch, 128-bit products, bits of numbers, reads and writes at an address of any
alignment. Addresses are plain integers and are not checked. Frames and pointers into mapped files are not aligned, hence the align
of 1.
"""
# ruff: noqa: ARG001  (numba reads the parameters of an intrinsic by their number; LLVM gets them as args)

from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from numba import extending, types

# Decorates a function that returns a signature and an emitter of LLVM instructions; callers omit its first parameter.
intrinsic: Callable[[Callable[..., Any]], Callable[..., Any]] = extending.intrinsic(prefer_literal=True)

_I1, _I32, _I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
_BYTE = ir.IntType(8)
_BYTES = _BYTE.as_pointer()


@intrinsic
def high64(typing: Any, a: Any, b: Any) -> Any:
    """The upper 64 bits of the 128-bit product of two u64."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        wide = ir.IntType(128)
        product = builder.mul(builder.zext(args[0], wide), builder.zext(args[1], wide))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, 64)), _I64)

    return types.uint64(types.uint64, types.uint64), emit


@intrinsic
def trailing_zeros(typing: Any, word: Any) -> Any:
    """The number of the lowest set bit of a u64; 64 when there is none."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], _I1(0))

    return types.uint64(types.uint64), emit


@intrinsic
def leading_zeros(typing: Any, word: Any) -> Any:
    """How many bits above the highest set bit of a u64; 64 when there is none."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.ctlz(args[0], _I1(0))

    return types.uint64(types.uint64), emit


@intrinsic
def float_of_bits(typing: Any, word: Any) -> Any:
    """The float64 of these 64 bits."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.DoubleType())

    return types.float64(types.uint64), emit


@intrinsic
def prefetch(typing: Any, address: Any) -> Any:
    """Prefetch the cache line at a u64 address; never faults."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arguments = [builder.inttoptr(args[0], _BYTES), _I32(0), _I32(3), _I32(1)]
        _call(builder, "llvm.prefetch.p0", [_BYTES, _I32, _I32, _I32], arguments)
        return context.get_dummy_value()

    return types.void(types.uint64), emit


def _pointer(builder: Any, address: Any, llvm_type: Any) -> Any:
    """LLVM may turn a computed address into an offset from null and drop a store there, unless the function declares
    null a valid address.
    """
    # llvmlite's own `add` knows fewer attributes than LLVM.
    set.add(builder.function.attributes, "null_pointer_is_valid")
    return builder.inttoptr(address, llvm_type.as_pointer())


def _load(numba_type: Any, llvm_type: Any) -> Any:
    """load(address u64): the value there."""

    def load(typing: Any, address: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return builder.load(_pointer(builder, args[0], llvm_type), align=1)

        return numba_type(types.uint64), emit

    return intrinsic(load)


def _store(numba_type: Any, llvm_type: Any) -> Any:
    """store(address u64, value)"""

    def store(typing: Any, address: Any, value: Any) -> Any:
        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            builder.store(args[1], _pointer(builder, args[0], llvm_type), align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, numba_type), emit

    return intrinsic(store)


load_u8, store_u8 = _load(types.uint8, _BYTE), _store(types.uint8, _BYTE)
load_u16, store_u16 = _load(types.uint16, ir.IntType(16)), _store(types.uint16, ir.IntType(16))
load_u32, store_u32 = _load(types.uint32, _I32), _store(types.uint32, _I32)
load_u64, store_u64 = _load(types.uint64, _I64), _store(types.uint64, _I64)
store_f32 = _store(types.float32, ir.FloatType())
load_i32 = _load(types.int32, _I32)


@intrinsic
def equal_bytes(typing: Any, address: Any, byte: Any) -> Any:
    """Return a u64 with a bit for each of the 64 bytes at a u64 address, the first one lowest: 1 where the byte is that u8."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        bytes_64 = ir.VectorType(_BYTE, 64)
        found = builder.load(_pointer(builder, args[0], bytes_64), align=1)
        one = builder.insert_element(ir.Constant(bytes_64, ir.Undefined), args[1], _I32(0))
        all_same = builder.shuffle_vector(
            one, ir.Constant(bytes_64, ir.Undefined), ir.Constant(ir.VectorType(_I32, 64), [0] * 64)
        )
        return builder.bitcast(builder.icmp_unsigned("==", found, all_same), _I64)

    return types.uint64(types.uint64, types.uint8), emit


def _pieces(count: int) -> Iterator[tuple[int, int]]:
    """Split count numbers into vectors, (start, length) each: powers of two, none longer than two cache lines of f32."""
    start = 0
    while start < count:
        length = min(32, 1 << ((count - start).bit_length() - 1))
        yield start, length
        start += length


def _constants(kind: Any, length: int, value: Any) -> Any:
    return ir.Constant(ir.VectorType(kind, length), [value] * length)


def _at(builder: Any, address: Any, offset: int, kind: Any, length: int) -> Any:
    """Pointer to a vector `offset` bytes behind a u64 address."""
    return _pointer(builder, builder.add(address, ir.Constant(_I64, offset)), ir.VectorType(kind, length))


def _floats_of_halves(builder: Any, halves: Any, length: int) -> Any:
    """Convert a vector of IEEE halves (u16) to f32, by integer arithmetic: not every processor has an instruction for it."""

    def constants(value: int) -> Any:
        return _constants(_I32, length, value)

    floats = ir.VectorType(ir.FloatType(), length)
    bits = builder.zext(halves, ir.VectorType(_I32, length))
    sign = builder.shl(builder.and_(bits, constants(0x8000)), constants(16))
    rest = builder.and_(bits, constants(0x7FFF))
    # The two formats differ in their exponent bias; the exponent of NaN and infinity is all ones in both.
    offset = builder.select(
        builder.icmp_unsigned(">=", rest, constants(0x7C00)), constants(2 * (112 << 23)), constants(112 << 23)
    )
    normal = builder.add(builder.shl(rest, constants(13)), offset)
    # A subnormal half is a whole multiple of 2^-24.
    small = builder.fmul(builder.sitofp(rest, floats), _constants(ir.FloatType(), length, 2.0**-24))
    is_small = builder.icmp_unsigned("<", rest, constants(0x400))
    found = builder.select(is_small, builder.bitcast(small, normal.type), normal)
    return builder.bitcast(builder.or_(found, sign), floats)


def _copy_of(read: Callable[[Any, Any, int], Iterator[tuple[int, Any, int]]]) -> Any:
    """Return copy(target u64, source u64, count), which writes a row of f32[count]; count is a compile-time constant.

    `read` yields (start, vector of f32, its length).
    """

    def copy(typing: Any, target: Any, source: Any, count: Any) -> Any:
        if not isinstance(count, types.IntegerLiteral):
            return None
        numbers = count.literal_value

        def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            for start, floats, length in read(builder, args[1], numbers):
                builder.store(floats, _at(builder, args[0], 4 * start, ir.FloatType(), length), align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64, count), emit

    return intrinsic(copy)


def _read_halves(builder: Any, source: Any, count: int) -> Iterator[tuple[int, Any, int]]:
    for start, length in _pieces(count):
        halves = builder.load(_at(builder, source, 2 * start, ir.IntType(16), length), align=1)
        yield start, _floats_of_halves(builder, halves, length), length


def _read_scaled(builder: Any, source: Any, count: int) -> Iterator[tuple[int, Any, int]]:
    """Read a row of scale f32, one half, and count - 1 signed bytes: yield the half, then each byte times the scale."""
    scale = builder.load(_pointer(builder, source, ir.FloatType()), align=1)
    half = builder.load(_at(builder, source, 4, ir.IntType(16), 1), align=1)
    yield 0, _floats_of_halves(builder, half, 1), 1
    for start, length in _pieces(count - 1):
        floats = ir.VectorType(ir.FloatType(), length)
        scales = ir.Constant(floats, ir.Undefined)
        for lane in range(length):
            scales = builder.insert_element(scales, scale, _I32(lane))
        steps = builder.load(_at(builder, source, 6 + start, _BYTE, length), align=1)
        yield 1 + start, builder.fmul(builder.sitofp(steps, floats), scales), length


copy_halves = _copy_of(_read_halves)
copy_scaled = _copy_of(_read_scaled)


def _call(builder: Any, name: str, parameters: list[Any], arguments: list[Any]) -> None:
    """Call an LLVM function that returns nothing."""
    kind = ir.FunctionType(ir.VoidType(), parameters)
    builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), arguments)


@intrinsic
def copy_bytes(typing: Any, target: Any, source: Any, length: Any) -> Any:
    """Copy a u64 number of bytes between ranges that may overlap. A compile-time constant becomes a few vector moves."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointers = [_pointer(builder, args[0], _BYTE), _pointer(builder, args[1], _BYTE)]
        _call(builder, "llvm.memmove.p0.p0.i64", [_BYTES, _BYTES, _I64, _I1], [*pointers, args[2], _I1(0)])
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), emit


@intrinsic
def zero_bytes(typing: Any, target: Any, length: Any) -> Any:
    """Write a u64 number of zero bytes."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        arguments = [_pointer(builder, args[0], _BYTE), _BYTE(0), args[1], _I1(0)]
        _call(builder, "llvm.memset.p0.i64", [_BYTES, _BYTE, _I64, _I1], arguments)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), emit
