"""Machine code from Python: the settings of numba, LLVM intrinsics that it lacks, and compiled code that packages share."""
