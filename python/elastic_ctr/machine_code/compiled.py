"""Numba's JIT: functions compiled without the GIL and cached on disk."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])
Made = TypeVar("Made")

_compiled: list[Any] = []


def bounds_checked() -> bool:
    """Whether compiled code checks its own addresses (`NUMBA_BOUNDSCHECK=1`): for tests, it costs speed."""
    from numba import config

    return bool(getattr(config, "BOUNDSCHECK", False))


def compiled(function: Function) -> Function:
    """Compile on first call, without the GIL, and keep the machine code on disk where a folder can be written.

    The function and those it calls must not make or return arrays, not even a view in a tuple: then numba needs no
    reference counts, which cost two locked instructions for each array at each access to a named tuple.

    The cache is keyed by the file of the function alone: a module whose compiled functions call those of another
    module is recompiled when the package is installed anew, because its files then are new.
    """
    return _compiled_with(function, _nrt=False)


def compiled_making_arrays(function: Function) -> Function:
    """As `compiled`, for functions that make arrays themselves."""
    return _compiled_with(function)


def compiled_inline(function: Function) -> Function:
    """As `compiled`, for a hot helper: LLVM puts it into its callers. A call of its own passes every array of a named tuple as
    seven words.
    """
    return _compiled_with(function, _nrt=False, forceinline=True)


def _compiled_with(function: Function, **options: Any) -> Function:
    from numba import njit

    try:
        found = njit(nogil=True, cache=True, error_model="numpy", **options)(function)
    except RuntimeError:
        # No folder for a cache can be written (read-only image without NUMBA_CACHE_DIR): compile at every start.
        found = njit(nogil=True, cache=False, error_model="numpy", **options)(function)
    _compiled.append(found)
    return cast("Function", found)


def anew_if_stale(make: Callable[[], Made]) -> Made:
    """The result of `make`. A cache of another release that cannot be read is cleared and filled again.

    numba pickles the types of arguments by the module they stand in, and fails where that is no more.
    """
    try:
        return make()
    except (ImportError, AttributeError):
        for each in _compiled:
            each._cache.flush()  # noqa: SLF001 (numba has no other word for it)
        return make()


def inlined(function: Function) -> Function:
    """Compiled into each caller, so that what is a constant there is a constant here."""
    from numba import njit

    return cast("Function", njit(nogil=True, inline="always", error_model="numpy")(function))
