"""Frames on sockets: what the doors of cube-server and serving, and those who ask them, have in common."""
