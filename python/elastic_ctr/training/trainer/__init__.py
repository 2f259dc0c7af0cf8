"""The trainer: it leases tasks and trains them against the parameter servers."""
