"""The protocol between the master, the trainers and the pservers."""

import os

# gRPC's core writes to stderr whenever a peer goes away; the calls say it better. Read when grpc is first imported.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
