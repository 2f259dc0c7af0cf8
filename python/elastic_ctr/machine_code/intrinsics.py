"""LLVM intrinsics that numba lacks: prefetch, 128-bit products, reads and writes at an address of any alignment.
Addresses are plain integers and are not checked. Frames and pointers into mapped files are not aligned, hence the align
of 1.
"""
# ruff: noqa: ARG001  (numba reads the parameters of an intrinsic by their number; LLVM gets them as args)

from typing import Any

from llvmlite import ir
from numba import types

from elastic_ctr.machine_code.compiled import intrinsic

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
def prefetch(typing: Any, address: Any) -> Any:
    """Ask for the cache line at a u64 address; never faults."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], _BYTES)
        kind = ir.FunctionType(ir.VoidType(), [_BYTES, _I32, _I32, _I32])
        function = builder.module.globals.get("llvm.prefetch.p0") or ir.Function(
            builder.module, kind, "llvm.prefetch.p0"
        )
        builder.call(function, [pointer, _I32(0), _I32(3), _I32(1)])
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
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(builder, args[0], llvm_type), align=1)

    return numba_type(types.uint64), emit


def _store(numba_type: Any, llvm_type: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[1], _pointer(builder, args[0], llvm_type), align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, numba_type), emit


@intrinsic
def load_u8(typing: Any, address: Any) -> Any:
    return _load(types.uint8, ir.IntType(8))


@intrinsic
def load_u16(typing: Any, address: Any) -> Any:
    return _load(types.uint16, ir.IntType(16))


@intrinsic
def load_u32(typing: Any, address: Any) -> Any:
    return _load(types.uint32, _I32)


@intrinsic
def load_i32(typing: Any, address: Any) -> Any:
    return _load(types.int32, _I32)


@intrinsic
def load_u64(typing: Any, address: Any) -> Any:
    return _load(types.uint64, _I64)


@intrinsic
def load_f32(typing: Any, address: Any) -> Any:
    return _load(types.float32, ir.FloatType())


@intrinsic
def store_u8(typing: Any, address: Any, value: Any) -> Any:
    return _store(types.uint8, ir.IntType(8))


@intrinsic
def store_u16(typing: Any, address: Any, value: Any) -> Any:
    return _store(types.uint16, ir.IntType(16))


@intrinsic
def store_u32(typing: Any, address: Any, value: Any) -> Any:
    return _store(types.uint32, _I32)


@intrinsic
def store_u64(typing: Any, address: Any, value: Any) -> Any:
    return _store(types.uint64, _I64)


@intrinsic
def store_f32(typing: Any, address: Any, value: Any) -> Any:
    return _store(types.float32, ir.FloatType())


@intrinsic
def copy_bytes(typing: Any, target: Any, source: Any, length: Any) -> Any:
    """Copy a u64 number of bytes; the two may overlap. A number known when compiling becomes a few vector moves."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        name = "llvm.memmove.p0.p0.i64"
        kind = ir.FunctionType(ir.VoidType(), [_BYTES, _BYTES, _I64, _I1])
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        pointers = [_pointer(builder, args[0], _BYTE), _pointer(builder, args[1], _BYTE)]
        builder.call(function, [*pointers, args[2], _I1(0)])
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), emit


@intrinsic
def zero_bytes(typing: Any, target: Any, length: Any) -> Any:
    """Write a u64 number of zero bytes."""

    def emit(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        name = "llvm.memset.p0.i64"
        i8 = ir.IntType(8)
        kind = ir.FunctionType(ir.VoidType(), [_BYTES, i8, _I64, _I1])
        function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
        builder.call(function, [_pointer(builder, args[0], _BYTE), i8(0), args[1], _I1(0)])
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64), emit
