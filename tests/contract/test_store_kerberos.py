"""A real HDFS that wants Kerberos, by https alone, and a KDC that is away, forgets principals or has another time."""

import logging
import os
import re
import shutil
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from contract.hadoop_world import Hadoop
from contract.kerberos_world import REALM, USER, Kdc
from elastic_ctr.config.data import DataSource
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import (
    AlreadyPublished,
    RetryPolicy,
    Store,
    StoreError,
    StoreUnavailable,
    open_source,
    open_store,
)
from ports import free_port
from store.backends.answering import Answer, Asked, answering

_FIRST_TICKET = f"krbtgt/{REALM}@{REALM}"


class Realm:
    """A folder of the secured HDFS for one test, and the stores that are opened there."""

    def __init__(self, hadoop: Hadoop, kdc: Kdc, ends: ExitStack) -> None:
        self.hadoop = hadoop
        self.kdc = kdc
        self.path = f"/{uuid.uuid4().hex}"
        self._ends = ends
        hadoop.ask("PUT", self.path, "MKDIRS")
        hadoop.ask("PUT", self.path, "SETPERMISSION", permission="777")

    def at(self, *, user: str = USER, keytab: Path | None = None, door: str = "") -> StoreConfig:
        # A ticket is kept by the names of keytab and user, so each test that needs a new one has a keytab of its own.
        return StoreConfig(
            url=f"swebhdfs://{door or self.hadoop.door}{self.path}", user=user, keytab=str(keytab or self.kdc.keytab)
        )

    def store(self, seconds: float = 60.0, *, user: str = USER, keytab: Path | None = None, door: str = "") -> Store:
        opened = open_store(self.at(user=user, keytab=keytab, door=door), retry=RetryPolicy(seconds))
        self._ends.callback(opened.close)
        return opened

    def tickets(self, service: str = _FIRST_TICKET, user: str = USER) -> int:
        return self.kdc.tickets(user, service)


@pytest.fixture
def realm(secure_hadoop: tuple[Hadoop, Kdc]) -> Iterator[Realm]:
    with ExitStack() as ends:
        yield Realm(*secure_hadoop, ends)


@pytest.fixture
def own_keytab(realm: Realm, tmp_path: Path) -> Path:
    return Path(shutil.copy(realm.kdc.keytab, tmp_path))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[requests.PreparedRequest]:
    """Every request that goes out."""
    found: list[requests.PreparedRequest] = []
    real = requests.Session.send

    def send(self: requests.Session, request: requests.PreparedRequest, **named: object) -> requests.Response:
        found.append(request)
        return real(self, request, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(requests.Session, "send", send)
    return found


def test_files_are_published_once_by_the_principal_and_read_by_ranges(realm: Realm) -> None:
    store = realm.store()
    data = os.urandom(10_000_000)

    store.put_bytes(data, "x/a")
    with pytest.raises(AlreadyPublished):
        store.put_bytes(b"other", "x/a")

    assert b"".join(store.read_from("x/a", 9_000_000)) == data[9_000_000:]
    at = realm.at()
    with open_source(DataSource(url=at.url, user=at.user, keytab=at.keytab)).open("x/a", 1000) as stream:
        assert stream.read() == data[1000:]
    [file] = realm.hadoop.ask("GET", f"{realm.path}/x", "LISTSTATUS")["FileStatuses"]["FileStatus"]
    assert (file["pathSuffix"], file["owner"]) == ("a", "ctr")


def test_a_datanode_gets_one_token_for_all_transfers_and_neither_ticket_nor_cookie(
    realm: Realm, sent: list[requests.PreparedRequest]
) -> None:
    store = realm.store()
    for number in range(3):
        store.put_bytes(b"ours", f"x/{number}")
        assert store.get_bytes(f"x/{number}") == b"ours"

    of_namenode = [each for each in sent if urlsplit(str(each.url)).netloc == realm.hadoop.door]
    of_datanode = [each for each in sent if each not in of_namenode]
    assert len(of_datanode) == 6
    assert not [each for each in of_datanode if {"authorization", "cookie"} & {name.lower() for name in each.headers}]
    assert all("delegation=" in str(each.url) for each in of_datanode)
    assert len([each for each in of_namenode if "op=GETDELEGATIONTOKEN" in str(each.url)]) <= 3
    # The NameNode's own cookie is enough in between.
    assert 0 < 2 * len([each for each in of_namenode if "authorization" in each.headers]) < len(of_namenode)


def test_no_token_is_logged(realm: Realm, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = realm.store()

    store.put_bytes(b"ours", "x/a")
    assert store.get_bytes("x/a") == b"ours"

    assert not re.search("delegation|Negotiate|hadoop.auth", caplog.text)


def used_until(realm: Realm, name: str, over: Callable[[], bool]) -> None:
    """Use the store of a principal whose tickets live for ten seconds."""
    store = realm.store(user=f"{name}@{REALM}", keytab=realm.kdc.add(f"{name}@{REALM}", f"{name}.keytab", "10 seconds"))
    number = 0
    while not over():
        store.put_bytes(b"ours", f"x/{number}")
        assert store.get_bytes(f"x/{number}") == b"ours"
        number += 1
        time.sleep(0.3)
    assert len(store.list("x")) == number


def test_cookies_and_tokens_that_have_expired_are_replaced_while_the_store_is_used(
    realm: Realm, sent: list[requests.PreparedRequest]
) -> None:
    """The server's cookies live for two seconds, its tokens for three."""

    def over() -> bool:
        return len([each for each in sent if "op=GETDELEGATIONTOKEN" in str(each.url)]) >= 2

    used_until(realm, "brief", over)

    assert realm.tickets(user=f"brief@{REALM}") > 1


def test_a_pair_of_namenodes_has_a_ticket_for_the_host_of_each(realm: Realm, own_keytab: Path) -> None:
    services = [f"HTTP/{host}@{REALM}" for host in ("127.0.0.1", "localhost")]
    before = [realm.tickets(service) for service in services]
    port = realm.hadoop.http

    realm.store(keytab=own_keytab, door=f"127.0.0.1:1,localhost:{port}").put_bytes(b"ours", "x/a")
    assert realm.store(keytab=own_keytab, door=f"127.0.0.1:{port},localhost:1").get_bytes("x/a") == b"ours"

    assert all(realm.tickets(service) > count for service, count in zip(services, before, strict=True))


def refusal_of(store: Store) -> StoreError:
    with pytest.raises(StoreError, match="x cannot be listed in") as refused:
        store.list("x")
    assert "\n" not in str(refused.value)
    return refused.value


def deleted(kdc: Kdc) -> tuple[str, Path]:
    keytab = kdc.add(f"gone@{REALM}", "gone.keytab")
    kdc.delete(f"gone@{REALM}")
    return f"gone@{REALM}", keytab


def exported_again(kdc: Kdc) -> tuple[str, Path]:
    former = Path(shutil.copy(kdc.add(f"old@{REALM}", "old.keytab"), kdc.folder / "former.keytab"))
    kdc.export(f"old@{REALM}", "old.keytab")
    return f"old@{REALM}", former


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (deleted, r"the KDC does not know store\.config\.user gone@EXAMPLE\.ORG; is it the principal"),
        (exported_again, r"former\.keytab has a key of old@EXAMPLE\.ORG that is not valid any more; export"),
        (lambda kdc: (f"else@{REALM}", kdc.keytab), r"ctr\.keytab has no key of else@EXAMPLE\.ORG; `klist -k`"),
        (lambda kdc: (USER, kdc.folder / "none"), r"keytab /.*/none cannot be read: No such file .*; is its Secret"),
    ],
    ids=["an unknown principal", "a former key", "a key of another principal", "no file"],
)
def test_a_principal_without_a_valid_key_is_refused_for_good(
    realm: Realm, given: Callable[[Kdc], tuple[str, Path]], says: str
) -> None:
    user, keytab = given(realm.kdc)

    refused = refusal_of(realm.store(user=user, keytab=keytab))

    assert not isinstance(refused, StoreUnavailable)
    assert re.search(says, str(refused)), refused


def test_a_namenode_whose_name_the_kdc_does_not_know_is_named(realm: Realm, own_keytab: Path) -> None:
    realm.kdc.rename("HTTP/127.0.0.1", "HTTP/elsewhere")
    try:
        refused = refusal_of(realm.store(keytab=own_keytab, door=f"127.0.0.1:{realm.hadoop.http}"))
    finally:
        realm.kdc.rename("HTTP/elsewhere", "HTTP/127.0.0.1")

    assert "the KDC does not know HTTP/127.0.0.1; give store.config.url the name by which" in str(refused)


def test_a_kdc_that_is_away_is_waited_for(realm: Realm, own_keytab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRB5_CONFIG", str(realm.kdc.write_krb5_conf("away.conf", free_port())))

    refused = refusal_of(realm.store(0.2, keytab=own_keytab))

    assert isinstance(refused, StoreUnavailable)
    assert "no KDC answers for ctr@EXAMPLE.ORG; does krb5.conf name it, and is port 88" in str(refused)


@pytest.mark.parametrize("corrected", [False, True], ids=["by the KDC", "by the NameNode"])
def test_clocks_that_are_too_far_apart_are_named(
    realm: Realm, own_keytab: Path, monkeypatch: pytest.MonkeyPatch, corrected: bool
) -> None:
    """A client corrects its own clock by the KDC's unless told otherwise; then the NameNode refuses its ticket."""
    conf = realm.kdc.write_krb5_conf("clocks.conf", realm.kdc.port, timesync=corrected)
    monkeypatch.setenv("KRB5_CONFIG", str(conf))
    realm.kdc.stop()
    realm.kdc.start(ahead="+1h")
    try:
        refused = refusal_of(realm.store(keytab=own_keytab))
    finally:
        realm.kdc.stop()
        realm.kdc.start()

    assert "the clocks of this machine, the KDC and HDFS are too far apart; set them by NTP" in str(refused)


def test_without_a_keytab_the_way_out_is_named(realm: Realm) -> None:
    at = realm.at().model_copy(update={"keytab": None})
    store = open_store(at, retry=RetryPolicy(60))

    assert "(401); set store.config.user to a Kerberos principal and store.config.keytab to a file" in str(
        refusal_of(store)
    )
    store.close()


def test_an_hdfs_without_kerberos_wants_no_keytab(realm: Realm) -> None:
    def answer(asked: Asked) -> Answer:
        if "op=GETDELEGATIONTOKEN" in asked.path:
            return Answer(200, b'{"Token": null}')
        return Answer(200, b'{"FileStatus": {"type": "FILE", "length": 5, "modificationTime": 1, "fileId": 7}}')

    with answering(answer) as server:
        at = StoreConfig(url=f"webhdfs://{server.address}", user=USER, keytab=str(realm.kdc.keytab))
        store = open_store(at, retry=RetryPolicy(60))
        with pytest.raises(StoreError, match=rf"http://{server.address} works without Kerberos; leave `keytab` out"):
            store.get_bytes("x")
        store.close()


def test_an_authority_that_is_not_trusted_is_named(realm: Realm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SSL_CERT_FILE")

    refused = refusal_of(realm.store())

    assert "is not trusted (self-signed certificate); SSL_CERT_FILE names the CAs" in str(refused)
    assert not isinstance(refused, StoreUnavailable)


# test_cookies_and_tokens_that_have_expired_are_replaced_while_the_store_is_used, of tests/contract/test_store_kerberos.py, has a ticket
# more than once.
@pytest.mark.nightly
def test_a_store_is_used_past_the_life_of_a_ticket(realm: Realm) -> None:
    ends = time.monotonic() + 11

    used_until(realm, "passing", lambda: time.monotonic() > ends)

    assert realm.tickets(user=f"passing@{REALM}") > 2


# The expired cookies of tests/contract/test_store_kerberos.py are no longer accepted either.
@pytest.mark.nightly
def test_a_namenode_that_has_forgotten_its_cookies_is_given_a_ticket_again(realm: Realm) -> None:
    store = realm.store()
    store.put_bytes(b"ours", "x/a")

    realm.hadoop.kill("namenode")
    realm.hadoop.start()

    assert store.get_bytes("x/a") == b"ours"


# tests/unit/store/backends/test_hdfs.py has a DataNode that refuses the connection, without Kerberos.
@pytest.mark.nightly
def test_no_token_is_in_the_traceback_of_a_transfer_that_failed(realm: Realm) -> None:
    store = realm.store(0.0)
    store.put_bytes(b"ours", "x/a")
    realm.hadoop.kill("datanode")
    try:
        with pytest.raises(StoreError, match=r"x/b cannot be written to") as unwritten:
            store.put_bytes(b"ours", "x/b")
        with pytest.raises(StoreError, match=r"x/a cannot be read from") as unread:
            store.get_bytes("x/a")
    finally:
        realm.hadoop.start()

    told = "".join(line for error in (unwritten.value, unread.value) for line in traceback.format_exception(error))
    assert "DataNode" in told
    assert not re.search("delegation|Negotiate", told)
