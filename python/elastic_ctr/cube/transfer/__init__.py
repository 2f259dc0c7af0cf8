"""`cube-transfer`: which versions cube holds, and which one is live."""
