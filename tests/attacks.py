"""Requests that ran commands or wrote files at the port of Paddle's server while it was open to all."""

import base64
import json
import socket
from contextlib import suppress
from pathlib import Path


def attacks(folder: Path) -> dict[str, bytes]:
    """By name; each would leave a file in `folder`."""

    def post(command: int, path: str, kind: str = "application/json") -> bytes:
        params = [base64.b64encode(each.encode()).decode() for each in (path, "0")]
        body = json.dumps({"cmd_id": command, "table_id": 0, "params": params})
        head = (
            f"POST /PsService/service HTTP/1.1\r\nHost: x\r\nOrigin: https://evil.example\r\nContent-Type: {kind}\r\n"
        )
        return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    mark = folder / "mark"
    return {
        "a save whose path runs a command": post(5, f"{folder}/x$(touch {mark}-1)"),
        "a save of all tables": post(6, f"{folder}/x$(touch {mark}-2)"),
        "a load": post(7, f'{folder}/x";touch {mark}-3;"'),
        "a save as text, which any page may send": post(5, f"{folder}/x$(touch {mark}-4)", "text/plain"),
        "a save as a form": post(5, f"{folder}/x$(touch {mark}-5)", "application/x-www-form-urlencoded"),
        "a save to a folder": post(5, f"{folder}/stolen"),
        "a flag that names a file": f"GET /flags/bvar_dump_file?setvalue={mark}-6 HTTP/1.1\r\nHost: x\r\n\r\n".encode(),
        "a flag that writes it": b"GET /flags/bvar_dump?setvalue=true HTTP/1.1\r\nHost: x\r\n\r\n",
    }


def raw_answer(port: int, request: bytes) -> bytes:
    """All that a port sends back, within five seconds."""
    answer = b""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as stranger:
        # A port that has refused the request already has its answer under way.
        with suppress(OSError):
            stranger.sendall(request)
            stranger.shutdown(socket.SHUT_WR)
        while piece := stranger.recv(4096):
            answer += piece
    return answer
