"""The file-server dies, fills up, is asked by strangers; the line to it is cut. Published files stay whole."""

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from contract.bad_line import BadLine, Fault, bad_line
from contract.file_server_world import TOKEN, FileServer, file_server_world
from contract.sending import Sending
from credentials import tokens
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import NotInStore, RetryPolicy, Store, StoreError, StoreUnavailable, open_store

PATIENT = RetryPolicy(60)


@pytest.fixture
def store(file_server: FileServer) -> Iterator[Store]:
    made = open_store(StoreConfig(url=file_server.url), tokens=tokens(TOKEN), retry=PATIENT)
    yield made
    made.close()


@pytest.fixture
def line(file_server: FileServer) -> Iterator[BadLine]:
    with bad_line("127.0.0.1", file_server.port) as made:
        yield made


@pytest.fixture
def far(line: BadLine) -> Iterator[Store]:
    """The store at the other end of the bad line."""
    made = open_store(StoreConfig(url=f"http://127.0.0.1:{line.port}"), tokens=tokens(TOKEN), retry=PATIENT)
    yield made
    made.close()


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("big") / "big"
    file.write_bytes(os.urandom(30_000_000))
    return file


def test_a_server_killed_in_the_middle_of_a_put_and_started_again_has_the_file_once(
    file_server: FileServer, store: Store, big: Path
) -> None:
    def die() -> None:
        file_server.kill()
        file_server.start()

    store.put(Sending.of(big, 20_000_000, die), "x/big")

    assert store.get_bytes("x/big") == big.read_bytes()
    assert [each for each in file_server.files() if not each.startswith("tmp/")] == ["x/big"]


def test_a_server_killed_in_the_middle_of_a_put_for_good_is_a_sentence(file_server: FileServer, big: Path) -> None:
    store = open_store(StoreConfig(url=file_server.url), tokens=tokens(TOKEN), retry=RetryPolicy(0.5))

    with pytest.raises(StoreUnavailable, match=r"x/big cannot be written to .*: it does not answer .* is it running"):
        store.put(Sending.of(big, 20_000_000, file_server.kill), "x/big")

    file_server.start()
    assert list(store.walk(".")) == []
    store.close()


def test_a_server_killed_in_the_middle_of_a_get_and_started_again_sends_the_rest(
    file_server: FileServer, store: Store, big: Path
) -> None:
    store.put(big, "x/big")
    blocks = store.read_from("x/big")
    first = next(blocks)

    file_server.kill()
    file_server.start()

    assert first + b"".join(blocks) == big.read_bytes()


@pytest.mark.parametrize("request_line", [b"PUT ", b"HEAD ", b"MOVE ", b"DELETE ", b"GET "])
def test_a_request_whose_answer_is_lost_is_done_once(
    file_server: FileServer, line: BadLine, far: Store, request_line: bytes
) -> None:
    line.fault = Fault(lost_answer_to=request_line)

    far.put_bytes(b"ours", "x/a")
    far.put_bytes(b"donefile", "done", overwrite=True)
    assert far.get_bytes("x/a") == b"ours"
    far.delete("done")

    assert line.cuts == 1
    published = [each for each in file_server.files() if ".part-" not in each]
    assert published == ["x/a"]


def test_uploads_that_are_cut_are_sent_again_and_nothing_torn_is_seen(
    file_server: FileServer, line: BadLine, far: Store, store: Store, big: Path
) -> None:
    line.fault = Fault(up_after=10_000_000, times=2)

    far.put(big, "x/big")

    assert line.cuts == 2
    assert store.get_bytes("x/big") == big.read_bytes()
    assert [each for each in file_server.files() if not each.startswith("tmp/")] == ["x/big"]


def test_downloads_that_are_cut_go_on_where_they_were(
    line: BadLine, far: Store, store: Store, big: Path, tmp_path: Path
) -> None:
    store.put(big, "x/big")
    line.fault = Fault(down_after=7_000_000, times=4)

    far.get("x/big", tmp_path / "big")

    assert line.cuts == 4
    assert (tmp_path / "big").read_bytes() == big.read_bytes()


def test_a_full_disk_is_a_sentence_and_leaves_nothing() -> None:
    with file_server_world(largest_file=1 << 20) as server:
        store = open_store(StoreConfig(url=server.url), tokens=tokens(TOKEN), retry=RetryPolicy(0.2))

        with pytest.raises(
            StoreError, match=r"a/b cannot be written to .*: it answers 500 .*; its disk may be full or read-only"
        ):
            store.put_bytes(b"x" * 5_000_000, "a/b")
        assert list(store.walk(".")) == []
        assert server.files() == []

        store.put_bytes(b"x" * 1000, "a/b")
        assert server.files() == ["a/b"]
        store.close()


def test_a_token_comes_and_goes_while_the_server_runs(file_server: FileServer) -> None:
    store = open_store(StoreConfig(url=file_server.url), tokens=tokens("next-token"), retry=PATIENT)
    try:
        file_server.accept(TOKEN, "next-token")
        store.put_bytes(b"1", "x/with-the-next")
        file_server.accept(TOKEN)
        with pytest.raises(StoreError, match="our token is not the right one"):
            store.put_bytes(b"2", "x/after-it-has-gone")
    finally:
        file_server.accept(TOKEN)
        store.close()


@pytest.mark.parametrize(
    "given", ["x", ".", "..", "../tokens/x", "x/../x", "%2e%2e", TOKEN[:-1], TOKEN + "x", TOKEN.upper()]
)
def test_the_file_server_refuses_an_invalid_token_even_one_that_is_a_path(file_server: FileServer, given: str) -> None:
    with httpx.Client(base_url=file_server.url) as client:
        refused = client.put("/x/a", content=b"1", headers={"authorization": f"Bearer {given}"})

    assert refused.status_code == 401
    assert "a token of the right 'internal'" in refused.text


@pytest.mark.parametrize(("token", "says"), [("another", "our token is not the right one"), (None, "no token is set")])
def test_a_wrong_token_is_one_sentence_also_before_a_large_body(
    file_server: FileServer, big: Path, token: str | None, says: str
) -> None:
    store = open_store(StoreConfig(url=file_server.url), tokens=None if token is None else tokens(token), retry=PATIENT)

    with pytest.raises(StoreError, match=rf"x cannot be written to .*: {says} \(401 .*\); let auth\.internalFile"):
        store.put(big, "x")
    with pytest.raises(StoreError, match=rf"x cannot be written to .*: {says}"):
        store.put_bytes(b"", "x", overwrite=True)
    with pytest.raises(StoreError, match=rf"x cannot be deleted from .*: {says}"):
        store.delete("x")

    assert file_server.files() == []
    store.close()


def test_strangers_may_read_and_change_nothing(file_server: FileServer, store: Store) -> None:
    store.put_bytes(b"open", "x/a")
    changes = ("PUT", "DELETE", "MOVE", "MKCOL", "COPY", "PROPPATCH", "POST", "PATCH", "LOCK", "OPTIONS", "FROB")

    with httpx.Client(base_url=file_server.url, trust_env=False) as stranger:
        assert stranger.get("/x/a").content == b"open"
        assert stranger.head("/x/a").status_code == 200
        assert stranger.get("/healthz").text == "ok\n"
        for method in changes:
            headers = {"destination": "/x/b", "authorization": "Bearer x", "depth": "infinity"}
            assert stranger.request(method, "/x/a", headers=headers).status_code == 401, method
        for method in ("MKCOL", "COPY", "POST", "FROB"):
            headers = {"destination": "/x/b", "authorization": f"Bearer {TOKEN}"}
            assert stranger.request(method, "/x/a", headers=headers).status_code == 405, method

    assert file_server.files() == ["x/a"]


@pytest.mark.parametrize(
    "other", [TOKEN.upper(), TOKEN.replace(".", "x"), TOKEN.replace("+", ""), f"{TOKEN}x", f"x{TOKEN}", TOKEN[:-1]]
)
def test_a_token_that_is_almost_the_right_one_is_refused(file_server: FileServer, other: str) -> None:
    with httpx.Client(base_url=file_server.url, trust_env=False) as client:
        for said, status in ((other, 401), (TOKEN, 201)):
            assert client.put("/x", content=b"", headers={"authorization": f"Bearer {said}"}).status_code == status


@pytest.mark.parametrize("target", ["/../x", "/%2e%2e/x", "/x/../../y", "http://elsewhere/x", "x", ""])
def test_a_destination_outside_is_refused(file_server: FileServer, store: Store, target: str) -> None:
    store.put_bytes(b"ours", "a/b")

    with httpx.Client(base_url=file_server.url, trust_env=False) as client:
        headers = {"authorization": f"Bearer {TOKEN}", "destination": target}
        assert client.request("MOVE", "/a/b", headers=headers).status_code == 400

    assert file_server.files() == ["a/b"]


def test_the_whole_store_is_not_deleted_by_one_call(file_server: FileServer, store: Store) -> None:
    store.put_bytes(b"ours", "a/b")

    with httpx.Client(base_url=file_server.url, trust_env=False) as client:
        assert client.delete("/", headers={"authorization": f"Bearer {TOKEN}"}).status_code == 409

    assert file_server.files() == ["a/b"]


def test_a_file_that_is_being_put_is_in_no_listing(file_server: FileServer, store: Store) -> None:
    store.put_bytes(b"", "x/a")
    with httpx.Client(base_url=file_server.url, trust_env=False) as client:
        client.put("/x/.part-1", content=b"half", headers={"authorization": f"Bearer {TOKEN}"}).raise_for_status()
        assert [each["name"] for each in client.get("/x/").json()] == ["a"]

    assert store.list("x") == ["a"]


def test_a_body_without_an_end_leaves_nothing(file_server: FileServer) -> None:
    def half() -> Iterator[bytes]:
        yield b"half"
        raise RuntimeError("gone")

    with httpx.Client(base_url=file_server.url, trust_env=False) as client, pytest.raises(RuntimeError):
        client.put("/x/a", content=half(), headers={"authorization": f"Bearer {TOKEN}", "content-length": "8"})

    store = open_store(StoreConfig(url=file_server.url))
    with pytest.raises(NotInStore):
        store.get_bytes("x/a")
    store.close()
