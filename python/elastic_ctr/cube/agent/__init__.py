"""`cube-agent`: fetches the parts that are assigned to its pod and has the cube-server beside it load them."""
