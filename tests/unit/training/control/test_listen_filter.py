import subprocess
import sys

_GIVES_UP = """
import errno, socket
from elastic_ctr.training.control.server_sockets import listen_nowhere

assert listen_nowhere()
with socket.socket() as server, socket.socket() as client:
    server.bind(("127.0.0.1", 0))
    server.listen()
    server.setblocking(False)
    try:
        server.accept()
    except BlockingIOError:
        print(errno.errorcode[client.connect_ex(server.getsockname())])
"""


def test_a_process_that_gave_up_listening_is_reached_by_nobody_and_waits_for_no_connection() -> None:
    done = subprocess.run([sys.executable, "-c", _GIVES_UP], capture_output=True, text=True, check=True)

    assert done.stdout == "ECONNREFUSED\n"
