"""Paddle's parameter server and its supervisor."""
