"""Slots, lines, keys: what a click log means."""
