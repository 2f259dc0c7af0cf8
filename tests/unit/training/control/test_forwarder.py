import os
import secrets
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from certificates import Authority
from elastic_ctr.runtime.auth import TokenFile, Tokens
from elastic_ctr.runtime.child_process import dies_with_this_process
from elastic_ctr.training.control.forwarder import Destination, Expose, ForwarderSecrets, over_tls
from elastic_ctr.training.control.proof import MAGIC, ProofRefused, check_and_prove, new_life, prove_and_check
from elastic_ctr.training.control.pump import pump
from elastic_ctr.training.control.server_call import connect, ping
from paddle_socket import PaddleSocket
from ports import free_port

LIFE = new_life()


def until(what: Callable[[], bool], seconds: float = 60) -> None:
    ends = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < ends
        time.sleep(0.01)


class Pair:
    """A server behind `expose`, and the socket of a trainer before `reach`."""

    def __init__(self, folder: Path, *, tls: Path | None = None, trainer_tls: Path | None = None) -> None:
        self.token, self.trainer_token = folder / "token", folder / "trainer-token"
        self.token.write_text("test secret")
        self.trainer_token.write_text("test secret")
        for name in ("server", "trainer"):
            (folder / name).mkdir()
        self.server = PaddleSocket(folder / "server")
        self.port = free_port()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._tls = tls
        self._start(
            "expose", self.token, tls, "--listen", f"127.0.0.1:{self.port}", "--socket", str(self.server.path), "--life", LIFE
        )  # fmt: skip
        self.folder = folder
        self.reach(LIFE, trainer_tls or tls)
        until(lambda: (folder / "trainer/8801").exists() and self._listens())

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def reach(self, life: str, tls: Path | None = None, folder: str = "trainer") -> Path:
        (self.folder / folder).mkdir(exist_ok=True)
        self._start(
            "reach", self.trainer_token, tls, "--folder", str(self.folder / folder), f"8801=127.0.0.1:{self.port}/{life}"
        )  # fmt: skip
        until((self.folder / folder / "8801").exists)
        return self.folder / folder / "8801"

    def _start(self, mode: str, token: Path, tls: Path | None, *arguments: str) -> None:
        command = [sys.executable, "-m", "elastic_ctr.training.control.forwarder", mode, "--token", str(token)]
        self._processes.append(
            subprocess.Popen(
                [*command, *(["--tls", str(tls)] if tls else []), "--parent", str(os.getpid()), *arguments],
                preexec_fn=dies_with_this_process(),  # noqa: PLW1509 (it calls prctl alone)
            )
        )

    @property
    def trainer(self) -> Path:
        return self.folder / "trainer" / "8801"

    def end(self) -> None:
        for each in self._processes:
            each.kill()
            each.wait()
        self.server.end()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.end()


def refused(port: int, first: bytes) -> bytes:
    """All that a caller without a secret is sent."""
    with socket.create_connection(("127.0.0.1", port), 10) as stranger:
        found = b""
        with suppress(ConnectionError):
            stranger.sendall(first)
            while piece := stranger.recv(4096):
                found += piece
        return found


def test_a_call_of_a_trainer_reaches_the_server_in_the_other_pod(pair: Pair) -> None:
    until(lambda: _well(pair.trainer))

    assert pair.server.called >= 1


def _well(path: Path) -> bool:
    try:
        ping(path)
    except OSError:
        return False
    return True


@pytest.mark.parametrize(
    "first",
    [
        b"GET /flags/bvar_dump?setvalue=true HTTP/1.1\r\nHost: x\r\n\r\n" + b" " * 100,
        b"POST /PsService/service HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n{}\n" + b" " * 100,
        b"PRPC" + bytes(200),
        MAGIC + bytes(200),
        os.urandom(200),
    ],
    ids=["a GET", "a POST", "a call", "a wrong proof", "anything"],
)
def test_a_caller_without_the_secret_gets_a_nonce_and_reaches_no_server(pair: Pair, first: bytes) -> None:
    before = pair.server.called

    found = refused(pair.port, first)

    assert found.startswith(MAGIC)
    assert len(found) == len(MAGIC) + 32
    assert pair.server.called == before


def test_a_proof_that_was_overheard_is_of_no_use(pair: Pair) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_connection(("127.0.0.1", pair.port), 10) as first:
        hello = first.recv(4096)
        theirs.sendall(hello)
        proving = threading.Thread(target=_prove, args=(ours,))
        proving.start()
        proof = theirs.recv(4096)
        theirs.close()
        proving.join()

    assert len(refused(pair.port, proof)) == len(MAGIC) + 32


def _prove(connection: socket.socket) -> None:
    with suppress(ProofRefused, OSError):
        check_and_prove(connection, "secret", LIFE, seconds=10)


def test_a_trainer_that_means_another_process_of_the_server_is_refused(pair: Pair) -> None:
    other = pair.reach(new_life(), folder="other")

    with pytest.raises(OSError, match=r"before the answer|reset"):
        ping(other)


def test_a_trainer_with_another_secret_is_refused_until_it_has_the_right_one(pair: Pair) -> None:
    pair.trainer_token.write_text("test wrong")
    with pytest.raises(OSError, match=r"before the answer|reset"):
        ping(pair.trainer)

    pair.trainer_token.write_text("test secret\n")

    ping(pair.trainer)


def test_a_trainer_with_a_newer_secret_than_the_servers_proves_the_one_before(pair: Pair) -> None:
    pair.trainer_token.write_text("new newer\ntest secret\n")

    ping(pair.trainer)


@pytest.mark.parametrize("echoes", [False, True], ids=["no proof", "the trainer's own proof"])
def test_a_trainer_passes_nothing_to_a_server_that_does_not_prove_the_secret(echoes: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        found: list[Exception] = []

        def trainer() -> None:
            try:
                check_and_prove(ours, "secret", LIFE, seconds=10)
            except (ProofRefused, OSError) as failed:
                found.append(failed)

        proving = threading.Thread(target=trainer)
        proving.start()
        theirs.sendall(MAGIC + bytes(32))
        proof = theirs.recv(4096)[-32:]
        theirs.sendall(proof if echoes else bytes(32))
        proving.join()

    assert "the pserver did not prove a secret of this run" in str(found[0])


def test_a_peer_that_sends_a_byte_now_and_then_does_not_keep_its_place() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        over = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                while not over.wait(0.01):
                    theirs.sendall(b"E")

        dripping = threading.Thread(target=drip)
        dripping.start()
        with pytest.raises(TimeoutError):
            prove_and_check(ours, ["secret"], LIFE, seconds=0.2)
        over.set()
        dripping.join()


def test_a_trainer_that_has_proven_the_secret_cannot_speak_http(pair: Pair) -> None:
    before = pair.server.called
    with socket.create_connection(("127.0.0.1", pair.port), 10) as trainer:
        check_and_prove(trainer, "secret", LIFE, seconds=10)
        trainer.settimeout(10)
        trainer.sendall(b"GET /flags HTTP/1.1\r\n\r\n")

        with suppress(ConnectionResetError):
            assert trainer.recv(100) == b""
    assert pair.server.called == before


def test_a_destination_is_a_host_a_port_and_a_life() -> None:
    assert Destination.parse(f"ctr-pserver-0.ctr:8800/{LIFE}") == Destination("ctr-pserver-0.ctr", 8800, LIFE)
    assert Destination.parse(f"[fd00::1]:8800/{LIFE}").host == "fd00::1"
    for wrong in ("", "h:1", "h:1/zz", f"8800/{LIFE}"):
        with pytest.raises(ValueError):  # noqa: PT011 (several sentences)
            Destination.parse(wrong)


def test_credentials_are_read_again_for_each_connection(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("old one")
    credentials = ForwarderSecrets(TokenFile(tmp_path / "token"), None)
    assert credentials.secrets() == ["one"]
    (tmp_path / "token").write_text("new two\nold one\n")
    assert credentials.secrets() == ["two", "one"]


class Pumped:
    """Two connected sockets with a pump between them; `tls`: one side in TLS."""

    def __init__(self, tls: Path | None = None) -> None:
        self.left, outside = socket.socketpair()
        inside, self.right = socket.socketpair()
        if tls is None:
            self._thread = threading.Thread(target=pump, args=(outside, inside))
        else:
            for each in (self.left, outside):
                each.settimeout(10)
            secured: list[ssl.SSLSocket] = []
            accepting = threading.Thread(target=lambda: secured.append(over_tls(outside, tls, server=True)[0]))
            accepting.start()
            self.left = over_tls(self.left, tls, server=False)[0]
            accepting.join()
            self._thread = threading.Thread(target=pump, args=(secured[0], inside))
        self._thread.start()

    def join(self) -> None:
        self._thread.join(60)
        assert not self._thread.is_alive()


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("authority")
    return Authority(home / "home").folder(home / "tls")


@pytest.fixture(params=["plain", "TLS"])
def pumped(request: pytest.FixtureRequest, tls: Path) -> Pumped:
    return Pumped(tls if request.param == "TLS" else None)


def test_a_pump_moves_all_bytes_both_ways_at_once_and_ends_with_its_peers(pumped: Pumped) -> None:
    sent = {"left": secrets.token_bytes(5_000_000), "right": secrets.token_bytes(3_000_000)}
    found: dict[str, bytes] = {}

    def talk(name: str, end: socket.socket) -> None:
        end.settimeout(60)
        sending = threading.Thread(target=lambda: end.sendall(sent[name]))
        # One thread reads and another writes: what TLS does not allow at its own end.
        if isinstance(end, ssl.SSLSocket):
            end.sendall(sent[name])
        else:
            sending.start()
        pieces = []
        size = len(sent["right" if name == "left" else "left"])
        while size:
            piece = end.recv(1 << 16)
            pieces.append(piece)
            size -= len(piece)
        found[name] = b"".join(pieces)
        if sending.ident is not None:
            sending.join()

    talking = [threading.Thread(target=talk, args=(n, getattr(pumped, n))) for n in ("left", "right")]
    for each in talking:
        each.start()
    for each in talking:
        each.join(60)
    assert found == {"left": sent["right"], "right": sent["left"]}

    pumped.left.close()
    assert pumped.right.recv(1) == b""
    pumped.right.close()
    pumped.join()


def test_a_pump_in_tls_passes_nothing_on_that_is_no_record_of_tls(tls: Path) -> None:
    pumped = Pumped(tls)
    pumped.left.settimeout(30)
    pumped.right.settimeout(30)
    pumped.right.sendall(b"last")
    pumped.right.shutdown(socket.SHUT_WR)
    assert pumped.left.recv(4) == b"last"

    with suppress(OSError):
        socket.socket.send(pumped.left, b"INJECTED WITHOUT TLS")

    with suppress(OSError):
        assert pumped.right.recv(100) == b""
    pumped.left.close()
    pumped.right.close()
    pumped.join()


def test_strangers_that_are_silent_keep_no_place_of_other_peers(tmp_path: Path) -> None:
    one = Expose(tmp_path / "8801", LIFE, ForwarderSecrets(Tokens(), None))

    taken = [one._has_place("10.0.0.1") for _ in range(100)]

    assert taken.count(True) == 64
    assert one._has_place("10.0.0.2")
    one._give_place_back("10.0.0.1")
    assert one._has_place("10.0.0.1")


def test_a_pump_whose_one_peer_is_gone_closes_the_other_ones_connection(pumped: Pumped) -> None:
    pumped.right.close()

    pumped.left.settimeout(30)
    with suppress(OSError):
        while pumped.left.recv(1024):
            pass
    pumped.left.close()
    pumped.join()


def test_forwarders_with_certificates_of_one_authority_speak_tls(tmp_path: Path, tls: Path) -> None:
    pair = Pair(tmp_path, tls=tls)
    try:
        until(lambda: _well(pair.trainer))
        # A caller without TLS is sent nothing but an alert.
        assert not refused(pair.port, MAGIC + bytes(200)).startswith(MAGIC)
    finally:
        pair.end()


def test_a_certificate_of_another_authority_is_refused(tmp_path: Path, tls: Path) -> None:
    strange = Authority(tmp_path / "home").folder(tmp_path / "strange")
    pair = Pair(tmp_path, tls=tls, trainer_tls=strange)
    try:
        with pytest.raises(OSError, match=r"before the answer|reset"):
            ping(pair.trainer)
        assert pair.server.called == 0
    finally:
        pair.end()


def test_a_third_party_between_two_ends_of_tls_is_refused_though_it_has_a_certificate(tmp_path: Path) -> None:
    # It holds a certificate of the authority, and relays both sides' proofs.
    authority = Authority(tmp_path / "home")
    folders = [authority.folder(tmp_path / f"tls-{name}") for name in ("trainer", "pserver", "third")]
    trainer, to_trainer = socket.socketpair()
    to_pserver, pserver = socket.socketpair()
    for each in (trainer, to_trainer, to_pserver, pserver):
        each.settimeout(10)
    outcome: dict[str, str] = {}

    def listens() -> None:
        secure, binding = over_tls(pserver, folders[1], server=True)
        try:
            prove_and_check(secure, ["secret"], LIFE, binding, seconds=10)
            outcome["pserver"] = "taken"
        except (ProofRefused, OSError) as refused:
            outcome["pserver"] = str(refused)
        finally:
            secure.close()

    def connects() -> None:
        secure, binding = over_tls(trainer, folders[0], server=False)
        try:
            check_and_prove(secure, "secret", LIFE, binding, seconds=10)
            outcome["trainer"] = "taken"
        except (ProofRefused, OSError) as refused:
            outcome["trainer"] = str(refused)
        finally:
            secure.close()

    def relays() -> None:
        one = over_tls(to_trainer, folders[2], server=True)[0]
        two = over_tls(to_pserver, folders[2], server=False)[0]
        with one, two, suppress(OSError):
            one.sendall(two.recv(4096))
            two.sendall(one.recv(4096))
            one.sendall(two.recv(4096))

    threads = [threading.Thread(target=each) for each in (listens, connects, relays)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert outcome["pserver"] == "it did not prove a secret of this run"
    assert outcome["trainer"] != "taken"


PARENT = """
import sys, time
from pathlib import Path
from elastic_ctr.training.control.server_sockets import reach
folder, address = sys.argv[1:]
print(reach(Path(folder), [address], token=folder + "/token", tls=None).pid, flush=True)
time.sleep(600)
"""


def test_a_forwarder_ends_with_its_parent(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("test secret")
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), f"127.0.0.1:1/{LIFE}"], stdout=subprocess.PIPE
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    until((tmp_path / "8801").exists)

    parent.kill()
    parent.wait()
    parent.stdout.close()

    until(
        lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text().split(")")[1][:3]
    )


def test_a_server_that_is_away_closes_the_trainers_connection(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.server.end()
    with connect(pair.trainer, 10) as connection:
        connection.sendall(b"PRPC" + bytes(8))
        with suppress(ConnectionError):
            assert connection.recv(1) == b""
    pair.end()


def test_a_forwarder_that_cannot_listen_ends_with_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("test secret")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = ["expose", "--listen", f"127.0.0.1:{port}", "--socket", str(tmp_path / "8801"), "--life", LIFE]
        ended = subprocess.run(
            [sys.executable, "-m", "elastic_ctr.training.control.forwarder", *command, "--token", str(tmp_path / "token"), "--parent", str(os.getpid())],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    assert ended.returncode == 1
    assert f"the forwarder ends: 127.0.0.1:{port} is used by another process" in ended.stderr
    assert "Traceback" not in ended.stderr
