"""Reads JSON from another process or a user. Any bytes give either a document or DocumentDamaged.

The parser is pydantic's: it bounds nesting and the digits of a number, and refuses text that is not UTF-8.
"""

from typing import TypeVar

from pydantic import BaseModel, Field, ValidationError

DOCUMENT_LIMIT = 64 << 20
# An ignored key might change the meaning of the others (docs/decisions/0021-unknown-keys.md).
_UNKNOWN = "this version of elastic-ctr knows no such key; mend its name, or upgrade this role if a newer one wrote it"
# Limit for a document from the network: while pydantic rejects one, it allocates up to 220 bytes for each value.
MOST_VALUES = 200_000
M = TypeVar("M", bound=BaseModel)


class DocumentDamaged(ValueError):
    """The bytes are not the expected document. The message has the field and the reason."""


class Numbered(BaseModel):
    """The schema number of a document, which every release can read. Documents without a number have 1."""

    schema_number: int = Field(default=1, ge=1, alias="schemaNumber")


def read_document(kind: type[M], data: bytes | str, limit: int = DOCUMENT_LIMIT, most_values: int | None = None) -> M:
    """Return the parsed document. `most_values` bounds the objects that untrusted bytes may become. Raises DocumentDamaged."""
    if len(data) > limit:
        raise DocumentDamaged(f"the document has {len(data)} bytes; {limit} are the most")
    if most_values is not None:
        refuse_many_values(data if isinstance(data, bytes) else data.encode(), most_values)
    try:
        return kind.model_validate_json(data)
    except ValidationError as wrong:
        first = wrong.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        # A key of the document may be any text; the sentence goes to logs and to status pages.
        reason = _UNKNOWN if first["type"] == "extra_forbidden" else first["msg"][:300]
        raise DocumentDamaged(f"{where[:80] or 'the document'}: {reason}") from wrong


def refuse_many_values(data: bytes, most: int) -> None:
    """Refuse a document of many values before a parser allocates an object for each. Raises DocumentDamaged.

    It counts the characters `{ [ , :`, one of which precedes each value but the first. Characters inside strings count too; no document
    of this project has that many. `machine_code.json_marks` leaves strings out, but needs numba.
    """
    if len(data) > most and (marks := sum(map(data.count, (b"{", b"[", b",", b":")))) > most:
        raise DocumentDamaged(f"the document has {marks} values, names and brackets; {most} are the most")
