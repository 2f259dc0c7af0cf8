"""Hours, tasks, leases, the ledger, saves and recovery."""
