"""Generations of trainers and pservers: their members, recovery, and the checkpoints that they start from."""
