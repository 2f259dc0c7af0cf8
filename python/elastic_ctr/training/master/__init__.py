"""The master: passes, tasks, leases, the ledger, saves and recovery."""
