"""Sets how many gradients Paddle's client sums before a push, through variables of its library.

In 2.6.2 neither the environment nor `paddle.set_flags` reaches them: they are not exported, and flags are parsed once, when paddle is
imported.
"""

import ctypes
from pathlib import Path

# Milliseconds that a thread of the client waits for more gradients.
_INTERVAL_MS = 1


def merge_gradients(batches: int) -> None:
    """Merge the gradients of up to so many batches of a trainer into one step. Call it after paddle is imported.

    Raises RuntimeError for a Paddle without these variables.
    """
    import paddle

    library = ctypes.CDLL(str(Path(paddle.__file__).parent / "base" / "libpaddle.so"))
    for kind in ("sparse", "dense"):
        # The variable counts further batches beside the first.
        _flag(library, f"FLAGS_pserver_push_{kind}_merge_limit").value = batches - 1
        _flag(library, f"FLAGS_pserver_async_push_{kind}_interval_ms").value = _INTERVAL_MS


def _flag(library: ctypes.CDLL, name: str) -> ctypes.c_int32:
    try:
        return ctypes.c_int32.in_dll(library, f"_ZN6paddle11distributed12paddle_flags{len(name)}{name}E")
    except ValueError as missing:
        raise RuntimeError(f"this paddlepaddle has no {name}; install requirements/run.txt") from missing
