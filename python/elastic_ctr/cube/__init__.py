"""The sharded lookup store: dictionary format, builder, server and agent of a pod, transfer, client, and their protocols."""
