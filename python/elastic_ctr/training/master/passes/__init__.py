"""Passes: their tasks, their epochs, and the data that they train."""
