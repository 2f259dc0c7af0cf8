"""Logging, lifecycle, health and metrics of every role."""
