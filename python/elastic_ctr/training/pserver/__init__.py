"""Paddle's parameter server and the small parent that looks after it."""
