"""Machine code from Python: numba behind one door, and what numba has no word for."""
