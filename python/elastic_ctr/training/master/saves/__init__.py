"""Saves after a pass: checkpoints, bases, deltas and compactions, and whether they are published."""
