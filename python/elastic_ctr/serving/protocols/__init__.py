"""The bodies of prediction requests and their answers."""
