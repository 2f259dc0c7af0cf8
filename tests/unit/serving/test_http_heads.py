import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_ctr.serving.http_heads import LONGEST_HEAD, Heads, Learned, pieces_of

PATH = "/a/b"
EVERYDAY = b"POST /a/b HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\nAccept: */*\r\n\r\n"


def test_an_everyday_head_is_known_by_what_stands_around_its_length() -> None:
    assert pieces_of(EVERYDAY, PATH, 100) == (
        b"POST /a/b HTTP/1.1\r\nHost: a\r\nContent-Length: ",
        b"\r\nAccept: */*\r\n\r\n",
    )


@pytest.mark.parametrize(
    "head",
    [
        EVERYDAY.replace(b"POST", b"PUT"),
        EVERYDAY.replace(b"/a/b", b"/a/b/"),
        EVERYDAY.replace(b"/a/b", b"*"),
        EVERYDAY.replace(b"/a/b", b"/a/\xff"),
        EVERYDAY.replace(b"1.1", b"1.0"),
        EVERYDAY.replace(b"1.1", b"1.0").replace(b"Accept: */*", b"Connection: keep-alive"),
        EVERYDAY.replace(b"Accept: */*", b"Connection: close"),
        EVERYDAY.replace(b"Accept: */*", b"Expect: 100-continue"),
        EVERYDAY.replace(b"Accept: */*", b"Content-Encoding: gzip"),
        EVERYDAY.replace(b"Accept: */*", b"Upgrade: h2c\r\nConnection: Upgrade"),
        EVERYDAY.replace(b"Accept: */*", b"Content-Length: 12"),
        EVERYDAY.replace(b"Content-Length: 12", b"Transfer-Encoding: chunked"),
        EVERYDAY.replace(b"Content-Length: 12\r\n", b""),
        EVERYDAY.replace(b"12", b"0"),
        EVERYDAY.replace(b"12", b"012"),
        EVERYDAY.replace(b"12", b"1234567890"),
        EVERYDAY.replace(b"Content-Length: 12", b"X: 1\r\n Content-Length: 12"),
        EVERYDAY.replace(b"\r\n", b"\n"),
        b"\r\n" + EVERYDAY,
        EVERYDAY.replace(b"*/*", b"a" * LONGEST_HEAD),
        EVERYDAY.replace(b"Accept: */*", b"\r\n".join([b"x: 1"] * 99)),
        EVERYDAY[:-2],
        b"",
    ],
)
def test_whatever_is_not_everyday_is_not_known(head: bytes) -> None:
    assert pieces_of(head, PATH, 100) is None


@settings(deadline=None, max_examples=300)
@given(st.integers(0, len(EVERYDAY) - 1), st.binary(max_size=3), st.integers(1, 99_999_999))
def test_another_length_between_the_same_pieces_means_the_same_to_the_parser(place: int, change: bytes, n: int) -> None:
    head = EVERYDAY[:place] + change + EVERYDAY[place + 1 :]
    pieces = pieces_of(head, PATH, 100)
    if pieces is None:
        return
    seen: list[tuple[bytes, bytes]] = []

    class Reading:
        def on_url(self, url: bytes) -> None:
            seen.append((b"url", url))

        def on_header(self, name: bytes, value: bytes) -> None:
            seen.append((name.lower(), value))

        def on_headers_complete(self) -> None:
            seen.append((b"done", b""))

    parser = httptools.HttpRequestParser(Reading())
    parser.feed_data(b"%d".join(pieces) % n if b"%" not in head else b"".join((pieces[0], b"%d" % n, pieces[1])))

    assert parser.get_method() == b"POST"
    assert parser.should_keep_alive()
    assert [value for name, value in seen if name == b"content-length"] == [b"%d" % n]
    assert [value for name, value in seen if name == b"url"] == [PATH.encode()]
    assert seen[-1] == (b"done", b"")


def test_a_head_is_kept_once_and_the_oldest_goes() -> None:
    heads = Heads(PATH, 100)
    others = [EVERYDAY.replace(b"*/*", b"%d" % number) for number in range(100)]

    lengths = [heads.learn(EVERYDAY.replace(b"12", b"%d" % (number + 1))) for number in range(100)]
    kept = (heads.table.sizes[:, 0] > 0).sum()
    first, again = [[heads.learn(each) for each in others] for _ in range(2)]

    assert lengths == [Learned.NEW] + [Learned.AGAIN] * 99
    assert kept == 1
    assert first == [Learned.NEW] * 100
    assert again == [Learned.AGAIN] * 100
    assert (heads.table.sizes > 0).all()
    assert heads.learn(EVERYDAY.replace(b"POST", b"GET")) == Learned.NOT
