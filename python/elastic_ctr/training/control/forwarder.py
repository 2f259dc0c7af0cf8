"""The process between Paddle's Unix sockets and the network of the pods.

    python -m elastic_ctr.training.control.forwarder expose --listen HOST:PORT --socket FILE --life HEX --token FILE --parent PID
    python -m elastic_ctr.training.control.forwarder reach --token FILE --parent PID SOCKET=HOST:PORT/LIFE…

`expose` runs beside a server. It accepts TCP connections, and connects one to the server's socket when its peer has proved a secret
of the run and its first bytes are those of brpc's own protocol. `reach` runs beside a trainer; each of its sockets leads to one
server. Both end with the process PID. They are separate processes, because Paddle's calls block every Python thread of theirs.
"""

import argparse
import hashlib
import logging
import os
import re
import socket
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from elastic_ctr.runtime.auth import TokenFile, Tokens
from elastic_ctr.runtime.child_process import die_with_parent
from elastic_ctr.runtime.lifecycle import PortInUse, listen, raise_fd_limit
from elastic_ctr.runtime.logging import configure_from_environment
from elastic_ctr.training.control.proof import ProofRefused, check_and_prove, prove_and_check
from elastic_ctr.training.control.pump import pump
from elastic_ctr.training.control.server_call import MAGIC, connect, ping_over

log = logging.getLogger(__name__)

# Both sides: seconds from the connection to the end of the proof.
PROOF_SECONDS = 5.0
# The most connections without a proof yet, of all peers and of one. A stranger can occupy only its own share, for PROOF_SECONDS; a
# trainer with eight threads opens some forty connections at once.
_UNPROVEN, _UNPROVEN_OF_PEER = 1024, 64
_FILES = 65_536
# Retries if the other side closed the connection before the proof, because it may have been over its limit.
_TRIES, _PAUSE_SECONDS = 3, 0.3
_BACKLOG = 256
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 30), (socket.TCP_KEEPINTVL, 10), (socket.TCP_KEEPCNT, 3))
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
# Seconds between two log lines about refused peers.
_QUIET_SECONDS = 5.0


@dataclass(frozen=True)
class ForwarderSecrets:
    """The secrets of the run and, for TLS, the folder of certificates. Both are read for each connection, because they may be replaced."""

    tokens: Tokens
    tls: Path | None

    def secrets(self) -> list[str]:
        """Return the valid secrets. A connecting side proves the first one."""
        return [each.secret for each in self.tokens.valid()]


@dataclass(frozen=True)
class Destination:
    """The address of a server for trainers in other pods: HOST:PORT/LIFE."""

    host: str
    port: int
    life: str

    @staticmethod
    def parse(address: str) -> "Destination":
        """Return the destination of an address. Raises ValueError."""
        place, _, life = address.rpartition("/")
        host, _, port = place.rpartition(":")
        if not host or len(bytes.fromhex(life)) * 2 != len(life):
            raise ValueError(f"{address!r} is no HOST:PORT/LIFE")
        return Destination(host.strip("[]"), int(port), life)


class RefusalLog:
    """Logs refused connections, at most one every 5 seconds, so that neither a stranger nor a retrying client fills the log."""

    def __init__(self) -> None:
        self._at = -_QUIET_SECONDS

    def add(self, sentence: str, reason: Exception) -> None:
        now = time.monotonic()
        if now - self._at >= _QUIET_SECONDS:
            self._at = now
            log.warning("%s: %s", sentence, reason)

    def pump(self, outside: socket.socket, inside: socket.socket) -> None:
        """Move bytes until the connection ends. If that cannot begin, close both ends."""
        try:
            pump(outside, inside)
        except (OSError, RuntimeError) as failed:
            self.add("a connection has no pipe or thread and is closed", failed)


class Expose:
    """Connects proven connections to a server's socket."""

    def __init__(self, server: Path, life: str, credentials: ForwarderSecrets) -> None:
        self._server = server
        self._life = life
        self._credentials = credentials
        self._lock = threading.Lock()
        self._unproven: Counter[str] = Counter()
        self._refusals = RefusalLog()

    def take(self, connection: socket.socket, peer: str) -> None:
        """Serve a connection until it ends. Each call has its own thread."""
        if not self._has_place(peer):
            connection.close()
            self._refusals.add(f"a connection from {peer} is refused", ProofRefused("too many wait for their proof"))
            return
        try:
            proven = self._proven(connection)
        except (ProofRefused, OSError) as refused:
            connection.close()
            self._refusals.add(f"a connection from {peer} is refused", refused)
            return
        finally:
            self._give_place_back(peer)
        try:
            inside = self._inside(proven)
        except (ProofRefused, OSError) as failed:
            proven.close()
            self._refusals.add(f"a connection from {peer} is refused", failed)
            return
        self._refusals.pump(proven, inside)

    def _has_place(self, peer: str) -> bool:
        with self._lock:
            if self._unproven[peer] >= _UNPROVEN_OF_PEER or self._unproven.total() >= _UNPROVEN:
                return False
            self._unproven[peer] += 1
            return True

    def _give_place_back(self, peer: str) -> None:
        with self._lock:
            self._unproven[peer] -= 1
            if not self._unproven[peer]:
                del self._unproven[peer]

    def _inside(self, proven: socket.socket) -> socket.socket:
        """Return a connection to the server, with the client's first bytes sent. Raises ProofRefused, OSError."""
        # A client may leave a new connection idle.
        proven.settimeout(None)
        first = b""
        while len(first) < len(MAGIC):
            piece = proven.recv(len(MAGIC) - len(first))
            if not piece:
                raise ProofRefused("it closed the connection without a call")
            first += piece
        if first != MAGIC:
            raise ProofRefused("it does not speak brpc's own protocol")
        inside = connect(self._server, PROOF_SECONDS)
        inside.sendall(first)
        return inside

    def _proven(self, connection: socket.socket) -> socket.socket:
        """Return the connection, over TLS if that is on, after the proof. Raises ProofRefused, OSError."""
        _tune(connection)
        proven, binding = connection, b""
        if self._credentials.tls is not None:
            proven, binding = over_tls(connection, self._credentials.tls, server=True)
        prove_and_check(proven, self._credentials.secrets(), self._life, binding, seconds=PROOF_SECONDS)
        return proven


class Reach:
    """Connects the connections of a trainer's local socket to a server in another pod."""

    def __init__(self, to: Destination, credentials: ForwarderSecrets) -> None:
        self._to = to
        self._credentials = credentials
        self._refusals = RefusalLog()

    def take(self, connection: socket.socket, _peer: str) -> None:
        """Serve a connection until it ends. Each call has its own thread."""
        try:
            outside = self._connected()
        except (ProofRefused, OSError) as failed:
            # Paddle and the watchdog see their connection closed and retry.
            connection.close()
            self._refusals.add(f"the pserver at {self._to.host}:{self._to.port} cannot be reached", failed)
            return
        self._refusals.pump(outside, connection)

    def _connected(self) -> socket.socket:
        """Return a proven connection to the server, with retries. Raises ProofRefused, OSError."""
        for _ in range(_TRIES - 1):
            try:
                return self.proven()
            except ProofRefused:  # noqa: PERF203 (trying again is what it is for)
                time.sleep(_PAUSE_SECONDS)
        return self.proven()

    def proven(self) -> socket.socket:
        """Return a proven connection to the server. Raises ProofRefused, OSError."""
        failed: Exception = ProofRefused("this side has no secret")
        # During a replacement of secrets the server may not have the newest one yet.
        for secret in self._credentials.secrets():
            connection = socket.create_connection((self._to.host, self._to.port), PROOF_SECONDS)
            try:
                _tune(connection)
                proven, binding = connection, b""
                if self._credentials.tls is not None:
                    proven, binding = over_tls(connection, self._credentials.tls, server=False)
                check_and_prove(proven, secret, self._to.life, binding, seconds=PROOF_SECONDS)
            except ProofRefused as refused:
                proven.close()
                failed = refused
            except OSError:
                connection.close()
                raise
            else:
                return proven
        raise failed


def ping_through(address: str, token: Path, tls: Path | None) -> None:
    """Return when the server at HOST:PORT/LIFE has answered through its forwarder, as for a trainer in another pod.

    Raises OSError, ValueError, ProofRefused.
    """
    with Reach(Destination.parse(address), ForwarderSecrets(TokenFile(token), tls)).proven() as connection:
        ping_over(connection)


def _tune(connection: socket.socket) -> None:
    connection.settimeout(PROOF_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)


def _serve(listener: socket.socket, take: Callable[[socket.socket, str], None]) -> None:
    refusals = RefusalLog()
    while True:
        try:
            connection, peer = listener.accept()
        except OSError as failed:
            # For example too many open files; other connections will end.
            refusals.add("a connection cannot be taken", failed)
            time.sleep(0.1)
            continue
        name = str(peer[0]) if peer else ""
        try:
            threading.Thread(target=take, args=(connection, name), daemon=True).start()
        except RuntimeError as failed:
            connection.close()
            refusals.add("a connection cannot be taken", failed)


def _arguments() -> argparse.Namespace:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--token", type=Path, required=True, help="file with the tokens of the right `internal`: the secrets"
    )
    common.add_argument("--tls", type=Path, help="folder of tls.crt, tls.key and ca.crt: mutual TLS")
    common.add_argument("--parent", type=int, required=True, help="the process ends with this one")
    parser = argparse.ArgumentParser(prog="forwarder", description=(__doc__ or "").partition("\n")[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    expose = modes.add_parser("expose", parents=[common])
    expose.add_argument("--listen", required=True, metavar="HOST:PORT")
    expose.add_argument("--socket", type=Path, required=True, help="the server's")
    expose.add_argument("--life", required=True, help="of the server: 32 hexadecimal digits")
    reach = modes.add_parser("reach", parents=[common])
    reach.add_argument("--folder", type=Path, required=True, help="where the sockets are made")
    reach.add_argument("servers", nargs="+", metavar="SOCKET=HOST:PORT/LIFE")
    return parser.parse_args()


def _run(given: argparse.Namespace) -> None:
    """Run the mode of the arguments for ever. Raises OSError, ValueError."""
    raise_fd_limit(_FILES)
    credentials = ForwarderSecrets(TokenFile(given.token), given.tls)
    if given.tls is not None:
        check_certificates(given.tls)
    if given.mode == "expose":
        host, _, port = given.listen.rpartition(":")
        listener = listen(host.strip("[]"), int(port), _BACKLOG)
        listener.setblocking(True)
        _serve(listener, Expose(given.socket, given.life, credentials).take)
    # The path of a Unix socket is limited to 108 bytes.
    os.chdir(given.folder)
    for each in given.servers:
        name, _, address = each.partition("=")
        inside = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # A socket with its final name accepts connections.
        beginning = Path(f"{name}.new")
        beginning.unlink(missing_ok=True)
        inside.bind(str(beginning))
        inside.listen(_BACKLOG)
        beginning.rename(name)
        take = Reach(Destination.parse(address), credentials).take
        threading.Thread(target=_serve, args=(inside, take), daemon=True).start()
    threading.Event().wait()


def main() -> None:
    """Run the forwarder for ever."""
    given = _arguments()
    die_with_parent(given.parent)
    configure_from_environment("forwarder")
    try:
        _run(given)
    except (OSError, ValueError) as failed:
        reason = failed.strerror if isinstance(failed, PortInUse) else failed
        log.error("the forwarder ends: %s", reason)  # noqa: TRY400 (one sentence)
        sys.exit(1)


def over_tls(connection: socket.socket, folder: Path, *, server: bool) -> tuple[ssl.SSLSocket, bytes]:
    """Return the connection in TLS 1.3, and the digests of the listening and the connecting side's certificates as this side sees them.

    The certificates are in a folder as in cert-manager's Secrets (`tls.crt`, `tls.key`, `ca.crt`). The CA is the release's own, so any
    certificate of it is accepted; names are not compared, because pods come and go. The folder is read for each connection, so renewed
    certificates need no restart.

    `connection` has a timeout. Raises OSError, of which ssl.SSLError is one.
    """
    context, own = _tls_context(folder, server=server)
    secure = context.wrap_socket(connection, server_side=server)
    theirs = secure.getpeercert(binary_form=True) or b""
    listening, connecting = (own, theirs) if server else (theirs, own)
    return secure, hashlib.sha256(listening).digest() + hashlib.sha256(connecting).digest()


def check_certificates(folder: Path) -> None:
    """Raises OSError, of which ssl.SSLError is one, if the folder is unusable."""
    _tls_context(folder, server=True)


def _tls_context(folder: Path, *, server: bool) -> tuple[ssl.SSLContext, bytes]:
    """Return the context, and this side's own certificate in DER."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    context.load_verify_locations(folder / "ca.crt")
    first = _CERTIFICATE.search((folder / "tls.crt").read_text())
    if first is None:
        raise ssl.SSLError(f"{folder}/tls.crt has no certificate")
    return context, ssl.PEM_cert_to_DER_cert(first[0])


if __name__ == "__main__":
    main()
