"""Hadoop's SequenceFile, read and written."""
