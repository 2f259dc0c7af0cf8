"""The durable state of the master in one SQLite file, with a module for each group of tables."""
