"""Checks of the documents that roles answer to /status."""

import json
from typing import Any, TypeVar

from elastic_ctr.runtime.status.status_document import StatusDocument

D = TypeVar("D", bound=StatusDocument)


def written_alike(kind: type[D], text: bytes | str) -> D:
    """The document, which is the same JSON when it is written again, with the same order of keys and the same types."""
    answer = json.loads(text)
    document = kind.model_validate(answer)
    # As texts: 1, 1.0 and true are equal in Python, and so are objects in any order.
    assert json.dumps(document.to_dict()) == json.dumps(answer)
    return document


def complete(kind: type[D], text: bytes | str, *, absent: tuple[str, ...] = ()) -> D:
    """The answer of a role of this release: a document with all fields but those absent, and with no other key at any depth."""
    document = written_alike(kind, text)
    assert json.loads(text).keys() == {field.alias for field in kind.model_fields.values()} - {*absent}
    assert unknown(document) == []
    return document


def unknown(value: Any) -> list[str]:
    """Keys that their classes do not name."""
    if isinstance(value, StatusDocument):
        return [*(value.model_extra or {}), *(key for each in vars(value).values() for key in unknown(each))]
    if isinstance(value, dict):
        return [key for each in value.values() for key in unknown(each)]
    return [key for each in value for key in unknown(each)] if isinstance(value, tuple) else []
