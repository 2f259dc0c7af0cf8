"""Numba's JIT: functions compiled without the GIL and cached on disk."""

from collections.abc import Callable
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])
Made = TypeVar("Made")

_compiled: list[Any] = []


def bounds_checked() -> bool:
    """True if compiled code checks its own addresses (`NUMBA_BOUNDSCHECK=1`), which is slow and meant for tests."""
    from numba import config

    return bool(getattr(config, "BOUNDSCHECK", False))


def compiled(function: Function) -> Function:
    """Compile on first call, run without the GIL, and cache the machine code on disk if a folder is writable.

    The function and its callees must not make or return arrays, not even a view in a tuple: then numba needs no
    reference counts, which cost two locked instructions for each array at each access to a named tuple.

    The cache is keyed by the file of the function alone. A module whose compiled functions call those of another
    module is recompiled after an installation of the package, because all its files are new then.
    """
    return _compiled_with(function, _nrt=False)


def compiled_making_arrays(function: Function) -> Function:
    """As `compiled`, for functions that make arrays themselves."""
    return _compiled_with(function)


def compiled_inline(function: Function) -> Function:
    """As `compiled`, for a hot helper that LLVM inlines into its callers. A real call passes every array of a named tuple as
    seven words.
    """
    return _compiled_with(function, _nrt=False, forceinline=True)


def _compiled_with(function: Function, **options: Any) -> Function:
    from numba import njit

    try:
        found = njit(nogil=True, cache=True, error_model="numpy", **options)(function)
    except RuntimeError:
        # No cache folder is writable (read-only image without NUMBA_CACHE_DIR), so every start compiles.
        found = njit(nogil=True, cache=False, error_model="numpy", **options)(function)
    _compiled.append(found)
    return cast("Function", found)


def anew_if_stale(make: Callable[[], Made]) -> Made:
    """Return the result of `make`, and clear an unreadable cache of another release before a second attempt.

    numba pickles argument types by the name of their module, and fails if the module no longer exists.
    """
    try:
        return make()
    except (ImportError, AttributeError):
        for each in _compiled:
            each._cache.flush()  # noqa: SLF001 (numba has no other word for it)
        return make()


def inlined(function: Function) -> Function:
    """Inline the function into each caller before compilation, so that the caller's constants are constants here too."""
    from numba import njit

    return cast("Function", njit(nogil=True, inline="always", error_model="numpy")(function))
