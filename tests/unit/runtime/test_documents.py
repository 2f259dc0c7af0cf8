import pytest

from elastic_ctr.runtime.documents import DocumentDamaged, read_document
from elastic_ctr.store.versions.manifest import Record


class Order(Record):
    version: int
    why: str = ""


@pytest.mark.parametrize("piece", [b"{},", b"[[]],", b"1,", b'"a",', b'{"a":1},'])
def test_a_document_that_would_become_many_objects_is_refused_before_it_is_parsed(piece: bytes) -> None:
    body = b'{"version":1,"more":[' + piece * 2000 + b"0]}"

    with pytest.raises(DocumentDamaged, match="values, names and brackets; 1000 are the most"):
        read_document(Order, body, most_values=1000)


def test_a_long_document_of_few_values_is_read() -> None:
    text = "where, and why? " * 1000

    assert read_document(Order, f'{{"version":1,"why":"{text}"}}', most_values=2000).why == text
