"""The servers of the prediction ports: HTTP natively and on asyncio, and gRPC."""
