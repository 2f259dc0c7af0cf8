"""Streams of click logs: logs with offsets that grow while they are read."""
