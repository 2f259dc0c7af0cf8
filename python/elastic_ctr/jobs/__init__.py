"""Batch work over existing hours: scores by a version in the store, and the search for better settings."""
