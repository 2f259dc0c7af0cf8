"""The store: its backends, and the documents of versions in it."""
