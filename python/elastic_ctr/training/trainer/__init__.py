"""Leases tasks and trains them against the parameter servers."""
