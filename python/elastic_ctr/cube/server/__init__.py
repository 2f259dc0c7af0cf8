"""`cube-server`: answers lookups from the parts it was told to hold."""
