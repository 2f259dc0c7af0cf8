"""Settings of the control channel that both ends need."""

# Published values of a sample with many keys: 65,536 lines of 300 slots stay far below.
MAX_MESSAGE = 512 << 20
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE),
    ("grpc.max_send_message_length", MAX_MESSAGE),
    # A company's web proxy has no business between the roles.
    ("grpc.enable_http_proxy", 0),
]
