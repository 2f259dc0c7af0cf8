"""How long a caller of a running serving waits while another sends bodies that are small on the wire and large in memory.

    python -m bench.large_bodies --address 127.0.0.1:8400 [--model ctr] [--seconds 5]

One thread asks for one prediction each 20 ms. Another sends one body after the other for so many seconds. Serving must not wait for a body
longer than 100 ms at a time; the numbers are of this machine, the clients included.
"""

import argparse
import http.client
import json
import sys
import threading
import time
import zlib
from collections.abc import Callable
from contextlib import closing
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from bench.method import ending
from elastic_ctr.operate.local.endpoints import metadata
from elastic_ctr.serving.protocols.json_fields import MOST_VALUES

UNPACKED, PLAIN = 60_000_000, (8 << 20) - 99
BETWEEN_SECONDS = 0.02


class Body(NamedTuple):
    name: str
    data: bytes
    is_packed: bool = False


class Waits(NamedTuple):
    """Seconds that answers took, and the statuses of the bodies sent meanwhile."""

    seconds: list[float]
    statuses: list[int]


def repeated(name: bytes, piece: bytes, size: int) -> bytes:
    return b'{"%s":[' % name + piece * (size // len(piece)) + b"0]}"


def packed(data: bytes) -> bytes:
    packer = zlib.compressobj(9, wbits=31)
    return packer.compress(data) + packer.flush()


def bodies(name: bytes) -> list[Body]:
    """`name` is the list of the request: instances or inputs."""
    names = b'{"%s":[{' % name + b",".join(b'"%07d":1' % number for number in range(PLAIN // 12)) + b"}]}"
    most = MOST_VALUES // 3 - 9
    return [
        *(
            Body(f"{piece.decode()} packed", packed(repeated(name, piece, UNPACKED)), is_packed=True)
            for piece in (b"{},", b"[[]],", b"1,")
        ),
        *(Body(piece.decode(), repeated(name, piece, PLAIN)) for piece in (b"{},", b"[[]],", b"1,")),
        Body("one object of many names", names),
        Body("as many values as allowed", repeated(name, b"[[]],", 5 * most)),
    ]


def posted(address: str, path: str, data: bytes, headers: dict[str, str]) -> int:
    host, _, port = address.partition(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=120)) as connection:
        connection.request("POST", path, data, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status


def measured(address: str, seconds: float, everyday: tuple[str, bytes], other: Callable[[], int] | None) -> Waits:
    """While `other` is called again and again in a thread of its own."""
    waits, statuses, ends = list[float](), list[int](), time.monotonic() + seconds

    def send() -> None:
        while other is not None and time.monotonic() < ends:
            statuses.append(other())

    sending = threading.Thread(target=send)
    sending.start()
    host, _, port = address.partition(":")
    with closing(http.client.HTTPConnection(host, int(port), timeout=120)) as connection:
        while time.monotonic() < ends or sending.is_alive():
            started = time.perf_counter()
            connection.request("POST", everyday[0], everyday[1], {"content-type": "application/json"})
            answer = connection.getresponse()
            if answer.status != http.HTTPStatus.OK:
                raise SystemExit(f"an everyday request was answered {answer.status}: {answer.read()[:200]!r}")
            answer.read()
            waits.append(time.perf_counter() - started)
            time.sleep(BETWEEN_SECONDS)
    sending.join()
    return Waits(sorted(waits), statuses)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", default="127.0.0.1:8400", help="of the prediction port (HTTP)")
    parser.add_argument("--model", default="ctr", help="its name")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each body")
    given = parser.parse_args()
    inputs = metadata(given.address, given.model)
    infer, rows = f"/v2/models/{given.model}/infer", f"/v1/models/{given.model}:predict"
    line = {
        "inputs": [
            {"name": "line", "shape": [1], "datatype": "BYTES", "data": [f"1:{slot}" for slot in inputs.slots[:1]]}
        ]
    }
    everyday = (infer, json.dumps(line).encode()) if inputs.slots else (rows, b'{"instances":[{}]}')
    alone = measured(given.address, given.seconds, everyday, None)
    shown = Table("path", "body", "bytes", "answers", "others: median ms", "longest ms", "longest - alone ms")
    worst = 0.0
    shown.add_row(
        "",
        "none",
        "",
        "",
        *(f"{1000 * each:.1f}" for each in (alone.seconds[len(alone.seconds) // 2], alone.seconds[-1])),
        "",
    )
    for path, name in ((infer, b"inputs"), (rows, b"instances"), (f"/v1/models/{given.model}:explain", b"instances")):
        for body in bodies(name):
            headers = {"content-encoding": "gzip"} if body.is_packed else {}

            def send(path: str = path, body: Body = body, headers: dict[str, str] = headers) -> int:
                return posted(given.address, path, body.data, headers)

            waits = measured(given.address, given.seconds, everyday, send)
            more = waits.seconds[-1] - alone.seconds[-1]
            worst = max(worst, more)
            statuses = ", ".join(f"{waits.statuses.count(status)} x {status}" for status in sorted(set(waits.statuses)))
            shown.add_row(
                path, body.name, f"{len(body.data):,}", statuses,
                *(f"{1000 * each:.1f}" for each in (waits.seconds[len(waits.seconds) // 2], waits.seconds[-1], more)),
            )  # fmt: skip
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(shown)
    console.print(f"longest wait above that without: {1000 * worst:.0f} ms (goal: 100 ms)", highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(ending(main))
