"""`cube-server`: answers lookups from the parts that the agent beside it has ordered it to load."""
