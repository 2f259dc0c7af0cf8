"""Questions to every worker of a cube-server."""

import numpy as np

from cube.parts import values_for
from cube.peers import Peer
from cube.running import ServerProcess
from elastic_ctr.cube.wire import Status

KEYS = np.arange(1, 301, dtype=np.uint64)


def peers_of(server: ServerProcess, count: int = 16) -> list[Peer]:
    """Enough connections that each worker has some."""
    return [Peer(server.port) for _ in range(count)]


def every_worker_answers(server: ServerProcess, version: int, status: Status = Status.OK) -> None:
    for peer in peers_of(server):
        with peer:
            reply = peer.ask(version, KEYS, 4)
            assert reply.status == status
            if status == Status.OK:
                assert reply.values.tobytes() == values_for(KEYS, 4, version).tobytes()


def refuses(port: int) -> bool:
    """Whether nobody listens any more; a process that ends may still accept, and hang up."""
    try:
        Peer(port).socket.close()
    except ConnectionRefusedError:
        return True
    except ConnectionError:
        return False
    return False
