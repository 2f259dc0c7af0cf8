"""The protocol between the master, the trainers and the pservers."""

import os

# gRPC's core logs to stderr whenever a peer disconnects; the errors of calls are clearer. It reads this when it is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
