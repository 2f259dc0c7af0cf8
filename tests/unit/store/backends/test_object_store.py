"""What a bucket may answer, and what becomes of it. A real one is in tests/contract/test_store.py and test_bucket.py."""

import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from elastic_ctr.config.buckets import BucketSettings
from elastic_ctr.config.data import DataSource
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.store.backends import (
    AlreadyPublished,
    NotInStore,
    RetryPolicy,
    Store,
    StoreError,
    StoreUnavailable,
    object_store,
    open_source,
    open_store,
)
from store.backends.answering import Answer, Asked, answering

pytestmark = pytest.mark.usefixtures("no_pauses")
SECRET = "very-secret"
ABSENT = Answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
STANDS = Answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
WRITTEN = Answer(200, headers={"etag": '"1"'})
NO_KEYS = (
    '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>false</IsTruncated>{}'
    "</ListBucketResult>"
)


def refusal(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code></Error>".encode())


def listing(*keys: str, prefixes: tuple[str, ...] = ()) -> Answer:
    """Keys with `=` have one byte."""
    entries = "".join(
        f"<Contents><Key>{key.rstrip('=')}</Key><LastModified>2026-11-30T12:00:00Z</LastModified><ETag>&quot;1&quot;</ETag>"
        f"<Size>{1 if key.endswith('=') else 0}</Size></Contents>"
        for key in keys
    )
    below = "".join(f"<CommonPrefixes><Prefix>{each}</Prefix></CommonPrefixes>" for each in prefixes)
    return Answer(200, NO_KEYS.format(entries + below).encode())


def content(data: bytes, first: int = 0, size: int | None = None, **more: object) -> Answer:
    whole = len(data) + first if size is None else size
    headers = {"etag": '"1"', "last-modified": "Mon, 30 Nov 2026 12:00:00 GMT"}
    if first:
        headers["content-range"] = f"bytes {first}-{whole - 1}/{whole}"
    return Answer(206 if first else 200, data, headers, **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    (tmp_path / "AWS_ACCESS_KEY_ID").write_text("key\n")
    (tmp_path / "AWS_SECRET_ACCESS_KEY").write_text(f"{SECRET}\n")
    # What else is in a mounted Secret.
    (tmp_path / "ca.crt").write_text("")
    (tmp_path / "..data").mkdir()
    return tmp_path


class World:
    """A store, and the server that it sends its requests to."""

    def __init__(self, store: Store, asked: list[Asked]) -> None:
        self.store = store
        self.asked = asked


Making = Callable[..., World]


@pytest.fixture
def world(keys: Path) -> Iterator[Making]:
    """Makes worlds whose server answers as told: by a function, or one answer after the other, the last for ever."""
    from contextlib import ExitStack

    with ExitStack() as ends:

        def make(*answers: Answer | Callable[[Asked], Answer], seconds: float = 0, proved: bool = True) -> World:
            left = list(answers)

            def answer(asked: Asked) -> Answer:
                given = left.pop(0) if len(left) > 1 else left[0]
                return given(asked) if callable(given) else given

            server = ends.enter_context(answering(answer))
            access = BucketSettings(endpoint=f"http://{server.address}", credentials="files", credentials_dir=str(keys))
            at = StoreConfig(url="s3://models/a", bucket=access)
            if proved:
                object_store._refuses_second.add((at.url, access.endpoint))
            return World(open_store(at, retry=RetryPolicy(seconds)), server.asked)

        yield make


@pytest.mark.parametrize(
    "answer",
    [
        refusal(409, "ConditionalRequestConflict"),
        refusal(503, "SlowDown"),
        refusal(500, "InternalError"),
        refusal(400, "ExpiredToken"),
        refusal(400, "RequestTimeout"),
        Answer(502, b"<html>"),
    ],
)
def test_a_refusal_that_passes_is_tried_again(world: Making, answer: Answer) -> None:
    here = world(answer, answer, WRITTEN, seconds=60)

    here.store.put_bytes(b"x", "b")

    assert [each.method for each in here.asked] == ["PUT", "PUT", "PUT"]
    assert all(each.headers["if-none-match"] == "*" for each in here.asked)
    assert len({each.headers["x-amz-meta-put"] for each in here.asked}) == 1


def test_a_conflict_that_stays_is_no_published_file(world: Making) -> None:
    here = world(refusal(409, "ConditionalRequestConflict"))

    with pytest.raises(StoreUnavailable, match=r"b cannot be written to s3://models/a: it answers 409 Conditional"):
        here.store.put_bytes(b"x", "b")


@pytest.mark.parametrize(("whose", "refused"), [("ours", False), ("another writer's", True)])
def test_a_refused_second_try_looks_whose_object_is_there(world: Making, whose: str, refused: bool) -> None:
    def head(asked: Asked) -> Answer:
        mark = here.asked[0].headers["x-amz-meta-put"] if whose == "ours" else "0123456789abcdef"
        return content(b"x")._replace(headers={**content(b"x").headers, "x-amz-meta-put": mark})

    here = world(refusal(500, "InternalError"), STANDS, head, seconds=60)

    if refused:
        with pytest.raises(AlreadyPublished):
            here.store.put_bytes(b"x", "b")
    else:
        here.store.put_bytes(b"x", "b")
    assert [each.method for each in here.asked] == ["PUT", "PUT", "HEAD"]


def test_a_refused_first_try_is_refused_without_a_look(world: Making) -> None:
    here = world(STANDS)

    with pytest.raises(AlreadyPublished, match="b is already published in s3://models/a"):
        here.store.put_bytes(b"x", "b")

    assert len(here.asked) == 1


def test_a_donefile_is_replaced_without_a_condition(world: Making) -> None:
    here = world(refusal(503, "SlowDown"), WRITTEN, seconds=60)

    here.store.put_bytes(b"x", "donefile", overwrite=True)

    assert [(each.method, each.headers.get("if-none-match")) for each in here.asked] == [("PUT", None)] * 2


def test_a_body_that_breaks_off_is_fetched_on(world: Making) -> None:
    data = os.urandom(5 << 20)

    def answer(asked: Asked) -> Answer:
        start = int(asked.headers.get("range", "bytes=0-")[6:-1])
        # Half of what is left; the last bytes come whole.
        sent = data[start:] if len(data) - start < 1 << 20 else data[start : start + (len(data) - start) // 2]
        return content(sent, first=start, size=len(data), length=len(data) - start)

    here = world(answer, seconds=60)

    assert here.store.get_bytes("b") == data
    assert len(here.asked) > 2


def test_a_stall_ends_and_is_tried_again(world: Making, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(object_store._TIMEOUTS, "read_timeout", "100ms")
    goes_on = threading.Event()

    def stalls(_: Asked) -> Answer:
        goes_on.wait(10)
        return ABSENT

    here = world(stalls, content(b"x"), seconds=60)

    assert here.store.get_bytes("b") == b"x"
    goes_on.set()


def test_a_signal_is_handled_while_a_call_lasts(world: Making) -> None:
    handled = threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: handled.set())

    def answers_later(_: Asked) -> Answer:
        os.kill(os.getpid(), signal.SIGUSR1)
        return content(b"x" if handled.wait(30) else b"late")

    try:
        assert world(answers_later).store.get_bytes("b") == b"x"
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (refusal(403, "SignatureDoesNotMatch"), r"it answers 403 SignatureDoesNotMatch: access is denied; .*set store\.config\.bucket"),
        (refusal(404, "NoSuchBucket"), r"there is no such bucket; is store\.config\.url right\?"),
        (refusal(301, "PermanentRedirect"), r"the bucket is elsewhere; is bucket\.region right"),
        (refusal(501, "NotImplemented"), "it answers 501 NotImplemented"),
    ],
)  # fmt: skip
def test_a_refusal_is_one_sentence_without_a_secret(world: Making, answer: Answer, sentence: str) -> None:
    store = world(answer, seconds=60).store

    for call in (lambda: store.put_bytes(b"x", "b"), lambda: store.list("c"), lambda: store.walk("c")):
        with pytest.raises(StoreError, match=sentence) as refused:
            call()
        assert not isinstance(refused.value, StoreUnavailable | NotInStore | AlreadyPublished)
        shown = f"{refused.value!r} {refused.value.__cause__!r}"
        assert SECRET not in shown
        assert "\n" not in str(refused.value)


def test_a_host_that_nobody_knows_and_one_that_is_away_are_named(keys: Path) -> None:
    def store_at(endpoint: str) -> Store:
        access = BucketSettings(endpoint=endpoint, credentials="files", credentials_dir=str(keys))
        return open_store(StoreConfig(url="s3://models", bucket=access), retry=RetryPolicy(0))

    with answering(lambda _: ABSENT) as server:
        pass
    with pytest.raises(StoreUnavailable, match=r"refuses the connection; is it running, and is bucket\.endpoint right"):
        store_at(f"http://{server.address}").list("a")
    with pytest.raises(StoreError, match=r"its host is not known here|no name server answers"):
        store_at("http://bucket.invalid").list("a")


def test_a_marker_of_a_folder_is_no_file(world: Making) -> None:
    here = world(listing("a/logs/", "a/logs/x=", prefixes=("a/logs/day/",)))
    assert here.store.list("logs") == ["day/", "x"]

    here = world(listing("a/logs/", "a/logs/day/", "a/logs/day/hour/", "a/logs/day/hour/part=", "a/logs/done"))
    assert list(here.store.walk("logs")) == ["logs/day/hour/part", "logs/done"]


@pytest.mark.parametrize("key", ["/y", "../y"])
def test_a_key_that_is_no_path_is_named(world: Making, key: str) -> None:
    here = world(listing("a/logs/x=", f"a/logs/{key}="))

    with pytest.raises(
        StoreError, match=f"logs cannot be listed in s3://models/a: 'a/logs/{key}' is no path of a file"
    ):
        here.store.list("logs")


@pytest.mark.parametrize("refused", [refusal(416, "InvalidRange"), Answer(200, b"")])
def test_a_read_from_the_end_of_an_object_is_empty(world: Making, refused: Answer) -> None:
    """Azure's refusal of a range has no status: here it is an answer without the range."""
    here = world(refused, content(b""))

    assert b"".join(here.store.read_from("b", 5)) == b""


def test_a_file_with_the_name_of_a_folder_is_listed_and_an_empty_marker_of_it_is_not(world: Making) -> None:
    here = world(listing("a/logs/part=", "a/logs/day", prefixes=("a/logs/part/", "a/logs/day/")))

    assert here.store.list("logs") == ["day/", "part", "part/"]


@pytest.mark.parametrize("answer", [ABSENT, Answer(404, b"<html>")])
def test_a_listing_that_is_answered_with_404_is_no_empty_folder(world: Making, answer: Answer) -> None:
    """An hour whose files are not listed would be trained without them."""
    store = world(answer).store

    for call in (lambda: store.list("logs"), lambda: store.walk("logs"), lambda: store.exists("logs")):
        with pytest.raises(StoreError, match="there is no such bucket") as refused:
            call()
        assert not isinstance(refused.value, NotInStore)


def test_an_absent_file_costs_one_request(world: Making) -> None:
    here = world(ABSENT)

    with pytest.raises(NotInStore, match="b is not in s3://models/a"):
        here.store.get_bytes("b")

    assert [each.method for each in here.asked] == ["GET"]


def test_a_mapped_file_is_sent_and_an_empty_one(world: Making, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    (tmp_path / "empty").touch()
    here = world(WRITTEN)

    here.store.put(tmp_path / "file", "b")
    here.store.put(tmp_path / "empty", "c")

    assert [each.headers["content-length"] for each in here.asked] == ["10", "0"]


def test_a_bucket_proves_once_that_it_refuses_a_second_object_of_one_name(world: Making) -> None:
    here = world(listing(), WRITTEN, STANDS, Answer(204), WRITTEN, proved=False)

    here.store.verify()
    here.store.put_bytes(b"x", "b")
    here.store.put_bytes(b"x", "c")

    assert [each.method for each in here.asked] == ["GET", "PUT", "PUT", "DELETE", "PUT", "PUT"]
    assert re.search(r"/a/\.part-[0-9a-f]{16}$", here.asked[1].path)


def test_a_bucket_that_takes_a_second_object_of_one_name_is_refused(world: Making) -> None:
    here = world(listing(), WRITTEN, WRITTEN, Answer(204), proved=False)

    with pytest.raises(StoreError, match="s3://models/a takes a second object of one name"):
        here.store.put_bytes(b"x", "b")

    assert [each.method for each in here.asked] == ["GET", "PUT", "PUT", "DELETE"]


@pytest.mark.parametrize("refused", [refusal(403, "InvalidAccessKeyId"), Answer(400)])
def test_credentials_that_have_changed_are_read_again(world: Making, keys: Path, refused: Answer) -> None:
    def denies(_: Asked) -> Answer:
        (keys / "AWS_ACCESS_KEY_ID").write_text("key-2")
        return refused

    here = world(denies, content(b"x"), seconds=60)

    assert here.store.size("b") == 1

    assert ["key-2/" in each.headers["authorization"] for each in here.asked] == [False, True]


@pytest.mark.parametrize("halfway", ["", None])
def test_credentials_that_are_just_written_are_waited_for(world: Making, keys: Path, halfway: str | None) -> None:
    """They are replaced file by file, and the first refusal finds one that is empty, or none at all."""

    def answer(asked: Asked) -> Answer:
        if "key-2/" in asked.headers["authorization"]:
            return content(b"x")
        if len(here.asked) == 1:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                (keys / name).unlink()
            if halfway is not None:
                (keys / "AWS_NONSENSE").write_text(halfway)
            threading.Timer(0.3, give).start()
        return refusal(403, "InvalidAccessKeyId")

    def give() -> None:
        (keys / "AWS_NONSENSE").unlink(missing_ok=True)
        (keys / "AWS_ACCESS_KEY_ID").write_text("key-2")
        (keys / "AWS_SECRET_ACCESS_KEY").write_text(SECRET)

    here = world(answer, seconds=60)

    assert here.store.size("b") == 1


@pytest.mark.parametrize(
    "refused",
    [Answer(400), Answer(403, b"<Error><Code>ExpiredToken</Code></Error>"), refusal(403, "RequestTimeTooSkewed")],
)
def test_temporary_credentials_that_expire_and_a_clock_that_is_wrong_are_waited_out(
    world: Making, keys: Path, refused: Answer
) -> None:
    """The new credentials, or the right time, come later than the refusal."""
    (keys / "AWS_SESSION_TOKEN").write_text("token")
    here = world(refused, refused, content(b"x"), seconds=60)

    assert here.store.get_bytes("b") == b"x"


def test_two_calls_that_are_refused_at_once_both_find_the_new_credentials(world: Making, keys: Path) -> None:
    def change() -> None:
        (keys / "AWS_ACCESS_KEY_ID").write_text("key-2")

    both = threading.Barrier(2, change)

    def answer(asked: Asked) -> Answer:
        if "key-2/" in asked.headers["authorization"]:
            return content(b"x")
        both.wait(30)
        return refusal(403, "InvalidAccessKeyId")

    here = world(answer, seconds=60)

    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(here.store.size, "ab")) == [1, 1]


@pytest.mark.parametrize(("scheme", "variable"), [("s3", "AWS_ACCESS_KEY_ID"), ("gs", "GOOGLE_SERVICE_ACCOUNT"), ("az", "AZURE_STORAGE_ACCOUNT_KEY")])  # fmt: skip
def test_an_environment_without_credentials_is_refused_at_once_and_asks_no_metadata_service(
    scheme: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")

    with pytest.raises(
        StoreError, match=rf"has no credentials: none of {variable}, .*data\.source\.bucket\.credentials"
    ):
        open_source(DataSource(url=f"{scheme}://logs/clicks"))


def test_a_folder_without_credentials_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    access = BucketSettings(credentials="files", credentials_dir=str(empty))

    with pytest.raises(StoreError, match=f"{empty} has no file with credentials of s3://models"):
        open_store(StoreConfig(url="s3://models", bucket=access))


@pytest.mark.parametrize(
    ("url", "files"),
    [
        ("gs://models/a", {"GOOGLE_SERVICE_ACCOUNT_KEY": "no JSON"}),
        ("az://models/a", {"AZURE_STORAGE_ACCOUNT_KEY": "!"}),
        ("s3://models/a", {"AWS_NONSENSE": "x"}),
    ],
)
def test_credentials_that_cannot_be_used_are_refused_without_their_text(
    url: str, files: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "credentials"
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text)
    access = BucketSettings(credentials="files", credentials_dir=str(folder))

    with pytest.raises(StoreError, match=f"{url} cannot be opened") as refused:
        open_store(StoreConfig(url=url, bucket=access))

    assert "no JSON" not in str(refused.value)


def test_the_host_names_the_bucket_where_it_should(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(lambda _: ABSENT) as server:
        # A proxy of the environment is given the whole address.
        monkeypatch.setenv("http_proxy", f"http://{server.address}")
        access = BucketSettings(
            endpoint="http://oss.test", virtual_hosted=True, credentials="files", credentials_dir=str(keys)
        )
        store = open_store(StoreConfig(url="s3://models/a", bucket=access), retry=RetryPolicy(0))
        with pytest.raises(NotInStore):
            store.get_bytes("b")

    assert server.asked[0].path == "http://models.oss.test/a/b"


def test_a_child_by_fork_is_refused_in_place_of_waiting_for_ever(
    world: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world(content(b"x"))
    monkeypatch.setattr(object_store, "_forked", False)

    object_store._note_fork()

    with pytest.raises(StoreError, match="this process is a fork, in which no call to a bucket returns"):
        here.store.get_bytes("b")
    assert not here.asked
