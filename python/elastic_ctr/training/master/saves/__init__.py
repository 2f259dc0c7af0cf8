"""Saves after a pass: checkpoints, bases, deltas, compactions, and publishing holds."""
