"""Streams of click logs that training reads, and the intake that writes one."""
