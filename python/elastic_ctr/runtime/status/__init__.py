"""The documents that roles answer to GET /status: the roles build them, and the commands read them."""
