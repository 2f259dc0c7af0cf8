import logging
import pickle
from pathlib import Path

import pytest

from elastic_ctr.runtime.auth import TokenFile, Tokens, bearer, tokens_in

ANN, BOB = "Bearer a-token_of.ann~=+", "Bearer another-one"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    written = tmp_path / "operate"
    written.write_text("ann a-token_of.ann~=+\n")
    return written


def test_a_file_has_one_or_two_named_tokens() -> None:
    assert tokens_in(b" ann  one \n\n", "file") == (("ann", "one"),)
    assert tokens_in(b"ann one\r\nbob two", "file") == (("ann", "one"), ("bob", "two"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "is empty; put a line `name token` in it"),
        (b"\n \n", "is empty"),
        (b"s3cret", "line 1 of file is not `name token`"),
        (b"ann one\nbob two three", "line 2 of file is not `name token`"),
        (b"ann one/two", "is not `name token`"),
        (b"ann ..", "is not `name token`"),
        ("ann n\xe4me".encode(), "is not `name token`"),
        (b"-ann one", "is not `name token`"),
        (b"a 1\nb 2\nc 3", "has 3 lines, and two tokens at most are valid at a time"),
        (b"ann " + b"x" * 5000, "has more than 4096 bytes"),
    ],
)
def test_a_file_that_holds_no_tokens_is_refused_without_its_text(text: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as refused:
        tokens_in(text, "file")

    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "a-token_of.ann~=+", ANN + "x", ANN[:-1], ANN.lower(), "Bearer \xe9"]
)
def test_a_caller_is_known_by_its_whole_token(file: Path, header: str) -> None:
    tokens = TokenFile(file)

    assert tokens.name_of(ANN) == "ann"
    assert tokens.name_of(header) is None
    assert Tokens().name_of(header) is None


def test_a_replaced_token_is_taken_beside_the_former_one_and_then_alone(file: Path) -> None:
    tokens = TokenFile(file)
    file.write_text("ann a-token_of.ann~=+\nbob another-one\n")
    both = [tokens.name_of(each) for each in (ANN, BOB)]
    sent = bearer(tokens)
    # As the kubelet does: the file is another one.
    (file.parent / "new").write_text("bob another-one\n")
    (file.parent / "new").replace(file)

    assert both == ["ann", "bob"]
    assert sent == {"authorization": ANN}
    assert [tokens.name_of(each) for each in (ANN, BOB)] == [None, "bob"]
    assert bearer(tokens) == {"authorization": BOB}


def test_a_replacement_that_cannot_be_read_leaves_the_former_tokens(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = TokenFile(file)
    with caplog.at_level(logging.WARNING):
        for change in (lambda: file.write_text("no"), file.unlink):
            change()
            assert [tokens.name_of(ANN) for _ in range(3)] == ["ann"] * 3
    file.write_text("bob another-one\n")

    assert caplog.text.count("the former tokens stay valid") == 2
    assert tokens.name_of(ANN) is None


def test_tokens_reach_worker_processes_and_are_read_again_there(file: Path) -> None:
    copied = pickle.loads(pickle.dumps(TokenFile(file)))
    file.write_text("bob another-one\n")

    assert bearer(copied) == {"authorization": BOB}


def test_a_client_without_a_token_sends_no_header() -> None:
    assert bearer(None) == bearer(Tokens()) == {}
