"""`cube-agent`: brings one cube-server the parts that its pod owes."""
