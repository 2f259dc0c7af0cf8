"""Streams of click logs that training reads, and the intake, which writes one."""
