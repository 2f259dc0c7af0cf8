"""Streams of click logs: logs with offsets that are appended to while they are read."""
