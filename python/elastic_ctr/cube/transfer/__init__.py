"""`cube-transfer`: decides which versions cube loads and which one is live."""
