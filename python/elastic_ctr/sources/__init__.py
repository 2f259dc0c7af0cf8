"""Streams and tables of click logs that training reads, and the intake, which writes a stream."""
