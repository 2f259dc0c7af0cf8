"""The durable state of the master in one SQLite file: a module for each group of its tables."""
