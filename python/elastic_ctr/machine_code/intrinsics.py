"""LLVM intrinsics that numba lacks: prefetch, 128-bit products, bits of numbers, reads and writes at an address of any
alignment. Addresses are plain integers and are not checked. Frames and pointers into mapped files are not aligned, hence the align
of 1.
"""
# ruff: noqa: ARG001  (numba reads the parameters of an intrinsic by their number; LLVM gets them as args)

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import extending, types

# Of a function that emits LLVM instructions itself; it is called without its first parameter.
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
    """Ask for the cache line at a u64 address; never faults."""

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
load_f32, store_f32 = _load(types.float32, ir.FloatType()), _store(types.float32, ir.FloatType())
load_i32 = _load(types.int32, _I32)


def _call(builder: Any, name: str, parameters: list[Any], arguments: list[Any]) -> None:
    """Call an LLVM function that returns nothing."""
    kind = ir.FunctionType(ir.VoidType(), parameters)
    builder.call(builder.module.globals.get(name) or ir.Function(builder.module, kind, name), arguments)


@intrinsic
def copy_bytes(typing: Any, target: Any, source: Any, length: Any) -> Any:
    """Copy a u64 number of bytes; the two may overlap. A number known when compiling becomes a few vector moves."""

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
