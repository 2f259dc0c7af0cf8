"""What the file-server might say, and what others might who are asked by mistake. The file-server itself: tests/contract."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from credentials import tokens
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import NotInStore, RetryPolicy, StoreError, StoreUnavailable, open_store
from store.backends.answering import Answer, Asked, answering

DATE = "Sat, 21 Nov 2026 08:40:28 GMT"


class World:
    """A store, and the server that it asks."""

    def __init__(self, answer: Callable[[Asked], Answer], seconds: float, token: str | None, folder: str) -> None:
        self._ends = ExitStack()
        server = self._ends.enter_context(answering(answer))
        self.asked = server.asked
        self.url = f"http://{server.address}"
        self.store = open_store(
            StoreConfig().moved(self.url + folder),
            tokens=None if token is None else tokens(token),
            retry=RetryPolicy(seconds),
        )

    def end(self) -> None:
        self.store.close()
        self._ends.close()


Making = Callable[..., World]


@pytest.fixture
def world() -> Iterator[Making]:
    """Makes worlds whose server answers as told: by a function, or one answer after the other, the last for ever."""
    with ExitStack() as ends:

        def make(
            *answers: Answer,
            by: Callable[[Asked], Answer] | None = None,
            seconds: float = 0.0,
            token: str | None = "secret",
            folder: str = "",
        ) -> World:
            left = iter(answers[:-1])
            made = World(by or (lambda _: next(left, answers[-1])), seconds, token, folder)
            ends.callback(made.end)
            return made

        yield make


def listing(*names: object) -> Answer:
    entries = [{"name": name, "type": "file", "mtime": DATE, "size": 1} for name in names]
    return Answer(200, json.dumps(entries).encode())


@pytest.mark.parametrize("ask", ["list", "walk"])
@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "..", ".", "", "a\0", None, 7])
def test_a_listing_with_a_name_that_leads_elsewhere_is_refused_whole(world: Making, name: object, ask: str) -> None:
    store = world(listing("good", name)).store

    with pytest.raises(StoreError, match=r"a cannot be listed in .* is not a file name; is it really a store"):
        list(getattr(store, ask)("a"))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"{}",
        b'["a"]',
        b'[{"name": "a"}]',
        b"null",
        b"[1]",
        b'[{"name": "a", "type": "file", "mtime": "yesterday", "size": 1}]',
        b'[{"name": "a", "type": "file", "mtime": "Sat, 21 Nov 2026 08:40:28 GMT", "size": "big"}]',
    ],
)
def test_an_answer_that_is_no_listing_is_refused_and_never_an_empty_folder(world: Making, body: bytes) -> None:
    with pytest.raises(StoreError, match="the answer is not a JSON listing; it needs nginx"):
        world(Answer(200, body)).store.list("a")


def test_a_name_in_another_encoding_is_found_again(world: Making) -> None:
    listed = b'[{"name": "\xff b", "type": "file", "mtime": "' + DATE.encode() + b'"}]'
    here = world(by=lambda asked: Answer(200, listed) if asked.path == "/x/" else Answer(204))

    for path in here.store.walk("x"):
        here.store.delete(path)

    assert here.asked[-1].path == "/x/%FF%20b"


def test_the_token_goes_with_changes_alone(world: Making) -> None:
    here = world(listing(), Answer(404), Answer(204))

    here.store.list("a")
    with pytest.raises(NotInStore):
        here.store.get_bytes("a")
    here.store.delete("a")

    assert [(asked.method, asked.headers.get("authorization")) for asked in here.asked] == [
        ("GET", None),
        ("GET", None),
        ("DELETE", "Bearer secret"),
    ]


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (401, "our token is not the right one (401 Unauthorized); let auth.internalFile name"),
        (403, "our token is not the right one (403 Forbidden)"),
        (405, "it answers 405 Method Not Allowed; is store.config.url right, and an nginx with WebDAV there"),
        (413, "it is too large (413 Request Entity Too Large); raise client_max_body_size"),
        (302, "it answers 302 Found; is store.config.url right"),
        (404, "it answers 404 Not Found; is store.config.url right"),
    ],
)
def test_a_refusal_for_good_is_one_sentence_and_one_try(world: Making, status: int, says: str) -> None:
    here = world(by=lambda asked: Answer(status if asked.method == "PUT" else 404), seconds=30)

    with pytest.raises(StoreError) as refused:
        here.store.put_bytes(b"x", "a/b")

    assert not isinstance(refused.value, StoreUnavailable | NotInStore)
    assert str(refused.value).startswith(f"a/b cannot be written to {here.url}: ")
    assert says in str(refused.value)
    assert [asked.method for asked in here.asked].count("PUT") == 1


def test_without_a_token_the_refusal_says_so(world: Making) -> None:
    with pytest.raises(StoreError, match=r"a cannot be deleted from .*: no token is set \(401"):
        world(Answer(401), token=None).store.delete("a")


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504, 508, 520])
def test_a_server_that_is_unavailable_for_a_moment_is_tried_again(world: Making, status: int, no_pauses: None) -> None:
    here = world(Answer(status, headers={"retry-after": "0"}), Answer(status), Answer(200, b"hello"), seconds=30)

    assert here.store.get_bytes("a") == b"hello"


def test_a_server_that_stays_unavailable_is_reported_in_its_own_words(world: Making) -> None:
    here = world(Answer(503, headers={"retry-after": "7"}))

    with pytest.raises(
        StoreUnavailable, match=r"a cannot be read from .*: it answers 503 Service Unavailable"
    ) as refused:
        here.store.get_bytes("a")

    assert refused.value.after == 7


def test_a_server_that_knows_no_ranges_is_read_from_the_start(world: Making) -> None:
    store = world(Answer(200, b"0123456789", {"etag": '"1"', "last-modified": DATE})).store

    assert b"".join(store.read_from("a", 7)) == b"789"
    assert b"".join(store.read_from("a", 10)) == b""


def test_the_rest_of_a_body_that_ends_early_is_requested(world: Making, no_pauses: None) -> None:
    def answer(asked: Asked) -> Answer:
        start = int(asked.headers.get("range", "bytes=0-")[6:-1])
        headers = {"etag": '"1"'} | ({"content-range": f"bytes {start}-9/10"} if start else {})
        return Answer(206 if start else 200, b"0123456789"[start : start + 4], headers, length=10 - start)

    here = world(by=answer, seconds=30)

    assert here.store.get_bytes("a") == b"0123456789"
    assert [asked.headers.get("range") for asked in here.asked] == [None, "bytes=4-", "bytes=8-"]


def test_a_file_that_is_another_one_after_the_break_is_noticed(world: Making, no_pauses: None) -> None:
    first = Answer(200, b"0123", {"etag": '"1"'}, length=10)
    second = Answer(206, b"abcdef", {"etag": '"2"', "content-range": "bytes 4-9/10"})

    with pytest.raises(StoreError, match="was changed while it was read"):
        world(first, second, seconds=30).store.get_bytes("a")


@pytest.mark.parametrize("given", ["", "bytes", "bytes x-9/10", "bytes 4-9/*", "lines 4-9/10"])
def test_a_range_that_is_not_understood_is_refused(world: Making, given: str) -> None:
    here = world(Answer(206, b"456789", {"etag": '"1"', "content-range": given}))

    with pytest.raises(StoreError, match=r"content-range .* is not understood"):
        list(here.store.read_from("a", 4))


def test_an_answer_from_a_later_byte_is_refused(world: Making) -> None:
    here = world(Answer(206, b"6789", {"etag": '"1"', "content-range": "bytes 6-9/10"}))

    with pytest.raises(StoreError, match="was changed while it was read"):
        list(here.store.read_from("a", 4))


def test_a_file_without_a_length_is_nobodys(world: Making) -> None:
    with pytest.raises(StoreError, match="the answer has no length; is it our file-server"):
        world(Answer(200, b"x", length=-1)).store.get_bytes("a")


@pytest.mark.parametrize("ask", ["exists", "get_bytes"])
def test_a_redirect_elsewhere_is_not_followed(world: Making, ask: str) -> None:
    store = world(Answer(301, headers={"location": "https://elsewhere/a"})).store

    with pytest.raises(StoreError, match=r"it sends us to https://elsewhere/a; is store\.config\.url right"):
        getattr(store, ask)("a")


def test_an_unknown_host_is_one_sentence_at_once() -> None:
    store = open_store(StoreConfig(url="http://file-server.invalid:8080"), retry=RetryPolicy(30))

    with pytest.raises(StoreError, match=r"no host file-server\.invalid is known here; is store\.config\.url right"):
        store.list("a")
    store.close()


def test_a_server_that_is_away_is_named_with_what_the_system_says() -> None:
    with answering(lambda _: Answer(200)) as server:
        pass
    store = open_store(StoreConfig(url=f"http://{server.address}"), retry=RetryPolicy(0))

    with pytest.raises(StoreUnavailable, match=r"does not answer \(.*Connection refused\)") as away:
        store.put_bytes(b"", "a/b")

    assert str(away.value).endswith("is it running, and is store.config.url right?")
    store.close()


@pytest.mark.parametrize("url", ["http://user:pass@file-server", "http://file-server?x=1", "http://file-server#x"])
def test_an_address_with_a_password_query_or_fragment_is_refused(url: str) -> None:
    with pytest.raises(StoreError, match=r"a token belongs into the file that auth\.internalFile") as refused:
        open_store(StoreConfig().moved(url))

    assert "pass" not in str(refused.value)


def test_a_folder_of_the_server_may_be_the_store(world: Making) -> None:
    here = world(Answer(204), folder="/deep%20down/")

    here.store.delete("a b/ü")

    assert here.asked[0].path == "/deep%20down/a%20b/%C3%BC"


def test_a_proxy_in_the_environment_is_not_used(world: Making, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    world(Answer(200, b"hello")).store.get("a", tmp_path / "a")

    assert (tmp_path / "a").read_bytes() == b"hello"
