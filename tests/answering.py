"""Doors of roles that say what a test wants said."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Said = tuple[int, Any]
Saying = Callable[[str, str, Any], Said]


@contextmanager
def saying(answer: Saying, credentials: list[str | None] | None = None) -> Iterator[str]:
    """HOST:PORT of a server whose answers are answer(method, path, body) -> (status, document). `credentials` gets those of each request."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(None)

        def do_POST(self) -> None:
            self._say(json.loads(self.rfile.read(int(self.headers["content-length"]))))

        def _say(self, body: Any) -> None:
            if credentials is not None:
                credentials.append(self.headers["authorization"])
            status, said = answer(self.command, self.path, body)
            data = said if isinstance(said, bytes) else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def pages(found: dict[str, Any]) -> Saying:
    """By path; what is not there is a 404."""

    def answer(method: str, path: str, body: Any) -> Said:
        if path not in found:
            return 404, {"error": f"{path} is not here"}
        said = found[path]
        return said if isinstance(said, tuple) else (200, said)

    return answer
