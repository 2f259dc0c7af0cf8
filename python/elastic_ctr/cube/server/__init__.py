"""`cube-server`: answers lookups from the parts that its agent loads."""
