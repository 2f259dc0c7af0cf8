"""`make release` and `make verify`: the files that registries take, and their check."""
