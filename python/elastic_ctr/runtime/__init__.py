"""Logging, lifecycle, health, metrics and status documents of every role."""
