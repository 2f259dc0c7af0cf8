"""Addresses, and what Hadoop and others say in its place. A real Hadoop: tests/contract."""

import json
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
import requests

from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import (
    AlreadyPublished,
    NotInStore,
    RetryPolicy,
    Store,
    StoreError,
    StoreUnavailable,
    open_store,
)
from elastic_ctr.store.backends.hdfs import WebHdfs, address_of
from store.backends.answering import Answer, Asked, Server, answering

FILE = {"type": "FILE", "length": 5, "modificationTime": 1795250638463, "fileId": 7, "pathSuffix": ""}


@pytest.mark.parametrize(
    ("url", "doors", "folder"),
    [
        ("hdfs://nn:9000", ("http://nn:9870",), ""),
        ("hdfs://nn", ("http://nn:9870",), ""),
        ("hdfs://nn:8020/user/ctr/", ("http://nn:9870",), "/user/ctr"),
        ("webhdfs://nn:14000/a%20b", ("http://nn:14000",), "/a b"),
        ("webhdfs://nn", ("http://nn:9870",), ""),
        ("swebhdfs://nn/x", ("https://nn:9871",), "/x"),
        ("swebhdfs://nn1:50470,nn2", ("https://nn1:50470", "https://nn2:9871"), ""),
        ("hdfs://nn1:9000,nn2:9000/x", ("http://nn1:9870", "http://nn2:9870"), "/x"),
        ("webhdfs://10.0.0.1:1,[fe80::1]:2", ("http://10.0.0.1:1", "http://[fe80::1]:2"), ""),
    ],
)
def test_an_address_names_the_doors_and_the_folder(url: str, doors: tuple[str, ...], folder: str) -> None:
    assert address_of(url) == (doors, folder)


@pytest.mark.parametrize(
    "url", ["hdfs:///a", "hdfs://", "hdfs://user@nn:9000", "hdfs://nn:x", "hdfs://nn1,,nn2", "hdfs://nn?x", "hdfs://nn/../x"]
)  # fmt: skip
@pytest.mark.parametrize("setting", ["store.config", "data.source"])
def test_an_address_that_is_none_is_refused_by_the_name_of_its_setting(url: str, setting: str) -> None:
    with pytest.raises(StoreError, match=rf"{setting}\.url 'hdfs.* is not understood; (give hdfs://|the folder is)"):
        WebHdfs(url, "root", setting)


def refusal(status: int, exception: str, message: str) -> Answer:
    return Answer(status, json.dumps({"RemoteException": {"exception": exception, "message": message}}).encode())


def file(**changes: object) -> Answer:
    return Answer(200, json.dumps({"FileStatus": FILE | changes}).encode())


@contextmanager
def store_at(*servers: Server, user: str = "alice", seconds: float = 0.0) -> Iterator[Store]:
    doors = ",".join(server.address for server in servers)
    store = open_store(StoreConfig(url=f"webhdfs://{doors}/root", user=user), retry=RetryPolicy(seconds))
    try:
        yield store
    finally:
        store.close()


@pytest.fixture
def saying() -> Iterator[Callable[..., Server]]:
    with ExitStack() as ends:

        def make(*answers: Answer, by: Callable[[Asked], Answer] | None = None) -> Server:
            left = iter(answers[:-1])
            return ends.enter_context(answering(by or (lambda _: next(left, answers[-1]))))

        yield make


Saying = Callable[..., Server]


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (
            refusal(403, "AccessControlException", "Permission denied: user=alice, access=READ\n\tat org.apache.x"),
            "as user 'alice' (Permission denied: user=alice, access=READ); set store.config.user to one who may",
        ),
        (refusal(403, "SecurityException", "Failed to obtain user group"), "as user 'alice' (Failed to obtain user"),
        (refusal(400, "IllegalArgumentException", 'Invalid value for "user.name"'), "set store.config.user"),
        (
            Answer(401, b"<html>Authentication required</html>"),
            "(401); set store.config.user to a Kerberos principal and",
        ),
        (Answer(404, b"It looks like you are making an HTTP request to a Hadoop IPC port."), "a Hadoop IPC port"),
        (Answer(404, b""), "answers 'it does not say why'; is store.config.url right, and is WebHDFS on?"),
        (Answer(200, b"<html>hello</html>"), "does not speak WebHDFS; is store.config.url right?"),
        (Answer(200, b"{}"), "does not speak WebHDFS; is store.config.url right?"),
        (Answer(404, b"{}"), "does not speak WebHDFS; is store.config.url right?"),
        (Answer(200, b"[1]"), "does not speak WebHDFS; is store.config.url right?"),
    ],
)
def test_a_refusal_for_good_is_one_sentence_and_one_try(saying: Saying, answer: Answer, says: str) -> None:
    server = saying(answer)

    with store_at(server, seconds=30) as store, pytest.raises(StoreError) as refused:
        store.size("a")

    assert not isinstance(refused.value, StoreUnavailable | NotInStore)
    assert str(refused.value).startswith(f"a cannot be looked up in webhdfs://{server.address}/root")
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        refusal(403, "StandbyException", "Operation category READ is not supported in state standby"),
        refusal(403, "RetriableException", "Namenode is in startup mode"),
        refusal(403, "SafeModeException", "Name node is in safe mode"),
        refusal(403, "IOException", "Failed to find datanode, suggest to check cluster health."),
        refusal(403, "DSQuotaExceededException", "The DiskSpace quota of /a is exceeded"),
        Answer(503, b"<html>"),
        Answer(429),
    ],
)
def test_a_namenode_that_cannot_just_now_is_waited_for(saying: Saying, answer: Answer, no_pauses: None) -> None:
    with store_at(saying(answer, answer, file()), seconds=30) as store:
        assert store.size("a") == 5

    with store_at(saying(answer)) as store, pytest.raises(StoreUnavailable, match="a cannot be looked up in"):
        store.size("a")


def test_the_active_one_of_a_pair_answers(saying: Saying) -> None:
    standby = saying(refusal(403, "StandbyException", "standby"))
    active = saying(file())

    with store_at(standby, active) as store:
        assert store.size("a") == store.size("b") == 5

    assert [asked.path.partition("?")[0] for asked in active.asked] == ["/webhdfs/v1/root/a", "/webhdfs/v1/root/b"]
    assert len(standby.asked) == 1


def test_the_user_is_named_in_every_call_and_a_cookie_of_one_is_not_anothers(saying: Saying) -> None:
    def user_in(asked: Asked) -> str:
        return parse_qs(urlsplit(asked.path).query)["user.name"][0]

    server = saying(by=lambda asked: file()._replace(headers={"set-cookie": f"hadoop.auth={user_in(asked)}"}))

    with store_at(server, user="alice") as alice, store_at(server, user="bobby") as bobby:
        for _ in range(2):
            alice.size("a")
            bobby.size("a")

    assert [user_in(asked) for asked in server.asked] == ["alice", "bobby"] * 2
    assert [asked.headers.get("cookie") for asked in server.asked] == [None, None, "hadoop.auth=alice", "hadoop.auth=bobby"]  # fmt: skip


@pytest.mark.parametrize("name", ["#LATEST", "a#LATEST{2}", "100%", "a b?c=d", "ü"])
def test_a_name_is_taken_as_it_is(saying: Saying, name: str) -> None:
    server = saying(file())

    with store_at(server) as store:
        store.size(name)

    assert [unquote(asked.path.partition("?")[0]) for asked in server.asked] == [f"/webhdfs/v1/root/{name}"]


def test_a_listing_with_a_name_that_leads_elsewhere_is_refused(saying: Saying) -> None:
    entries = [FILE | {"pathSuffix": "good"}, FILE | {"pathSuffix": "../bad"}]
    server = saying(Answer(200, json.dumps({"FileStatuses": {"FileStatus": entries}}).encode()))

    with store_at(server) as store, pytest.raises(StoreError, match=r"'\.\./bad' is not a file name"):
        store.list("a")


def test_a_rename_says_whether_it_may_overwrite(saying: Saying) -> None:
    def answer(asked: Asked) -> Answer:
        if "op=GETFILESTATUS" in asked.path:
            return file(length=1)
        if "op=CREATE" in asked.path and "sent" not in asked.path:
            return Answer(307, headers={"location": f"http://{server.address}/sent?op=CREATE"})
        return Answer(201 if "op=CREATE" in asked.path else 200)

    server = saying(by=answer)

    with store_at(server) as store:
        store.put_bytes(b"x", "a", overwrite=True)

    [rename] = [asked.path for asked in server.asked if "op=RENAME" in asked.path]
    assert "renameoptions=OVERWRITE" in rename
    assert "destination=%2Froot%2Fa" in rename


def test_an_older_rename_that_says_no_means_published_already(saying: Saying) -> None:
    """HttpFS knows no options of a rename."""

    def answer(asked: Asked) -> Answer:
        if "op=GETFILESTATUS" in asked.path:
            return file(length=1) if ".part-" in asked.path else refusal(404, "FileNotFoundException", "no")
        if "op=CREATE" in asked.path and "sent" not in asked.path:
            return Answer(307, headers={"location": f"http://{server.address}/sent?op=CREATE"})
        return Answer(200, b'{"boolean": false}') if "op=RENAME" in asked.path else Answer(200, b'{"boolean": true}')

    server = saying(by=answer)

    with store_at(server) as store, pytest.raises(AlreadyPublished):
        store.put_bytes(b"x", "a")


def test_a_datanode_that_is_not_known_here_is_named_with_the_way_out(saying: Saying) -> None:
    def answer(asked: Asked) -> Answer:
        if "op=OPEN" in asked.path:
            return Answer(307, headers={"location": "http://datanode-7.invalid:9864/webhdfs/v1/root/a?op=OPEN"})
        return file()

    with store_at(saying(by=answer), seconds=30) as store, pytest.raises(StoreError) as unknown:
        store.get_bytes("a")

    assert "no host datanode-7.invalid is known here; it must have that name here as well" in str(unknown.value)


def test_the_address_of_a_transfer_is_in_no_traceback(saying: Saying) -> None:
    with answering(lambda _: file()) as away:
        pass

    def answer(asked: Asked) -> Answer:
        if "op=GETFILESTATUS" in asked.path:
            return file()
        return Answer(307, headers={"location": f"http://{away.address}/webhdfs/v1/root/a?delegation=SECRET"})

    with store_at(saying(by=answer)) as store:
        for transfer in (lambda: store.get_bytes("a"), lambda: store.put_bytes(b"x", "a", overwrite=True)):
            with pytest.raises(StoreUnavailable, match=rf"DataNode http://{away.address}, .* refuses the") as failed:
                transfer()
            assert "SECRET" not in "".join(traceback.format_exception(failed.value))


def test_a_keytab_without_gssapi_is_refused_with_what_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)

    with pytest.raises(
        StoreError, match=r"store\.config\.keytab needs the Python package gssapi.*libkrb5-dev of Debian, run"
    ):
        open_store(StoreConfig(url="hdfs://nn:9000", user="ctr@EXAMPLE.ORG", keytab="/ctr.keytab"))


def test_an_unknown_host_is_one_sentence_at_once() -> None:
    store = open_store(StoreConfig(url="hdfs://nn.invalid:9000"), retry=RetryPolicy(30))

    with pytest.raises(StoreError, match=r"no host nn\.invalid is known here; is store\.config\.url right"):
        store.list("a")
    store.close()


def test_a_namenode_that_is_away_is_named() -> None:
    with answering(lambda _: file()) as server:
        pass

    with (
        store_at(server) as store,
        pytest.raises(StoreUnavailable, match=rf"http://{server.address} refuses the connection; is it"),
    ):
        store.list("a")


def test_a_proxy_in_the_environment_is_not_asked(saying: Saying, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    with store_at(saying(file())) as store:
        assert store.size("a") == 5


def test_every_call_has_a_time_limit(saying: Saying, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    real = requests.Session.request

    def request(self: requests.Session, method: str, url: str, **named: object) -> requests.Response:
        given.append((method, named["timeout"]))
        return real(self, method, url, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(requests.Session, "request", request)

    def answer(asked: Asked) -> Answer:
        if "op=CREATE" in asked.path:
            return Answer(307, headers={"location": f"http://{server.address}/sent"})
        return file(length=1)

    server = saying(by=answer)

    with store_at(server) as store:
        store.put_bytes(b"x", "a", overwrite=True)

    assert given == [("PUT", (5.0, 60.0)), ("PUT", (20.0, 60.0)), ("GET", (5.0, 60.0)), ("PUT", (5.0, 60.0))]
