"""The pause between tries that outlive one call. stamina retries a single call, see `store.retry`."""


def growing_pause(failures: int, first: float, longest: float) -> float:
    """Return the seconds to wait after so many failures in a row: 0 after none, `first` after one, twice as long after each further one."""
    # Bounded before the power: a float overflows after a thousand failures.
    return min(first * 2.0 ** min(failures - 1, 30), longest) if failures else 0.0
