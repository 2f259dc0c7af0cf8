"""`model.startFrom`: another model's checkpoint that a new training begins with, and what of its dense network fits."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, field_validator

from elastic_ctr.config.section import EXACT, Section

if TYPE_CHECKING:
    from elastic_ctr.config.model import Model, ModelInput

_STORE = r"^(file:///.|https?://.|(web)?hdfs://.)"


class StartFrom(Section):
    """The version whose training goes on, under other slots, features or another network."""

    store: str | None = Field(
        default=None,
        description="The store of the other model, with an address as in store.config.url. Absent: this model's own store.",
        json_schema_extra={"pattern": _STORE},
    )
    user: str = Field(default="root", min_length=1, description="User that reads there; HDFS checks it.")
    version: Literal["latest"] | Annotated[int, Field(ge=1, le=EXACT)] = Field(
        default="latest",
        description="The version to begin with; its checkpoint must still be in the store. latest: the newest that has one.",
    )

    @field_validator("store")
    @classmethod
    def _known(cls, url: str | None) -> str | None:
        if url is not None and not re.match(_STORE, url):
            raise ValueError(f"{url!r} is none of file:///dir, http://file-server:8080, hdfs://namenode:9000/dir")
        return url


def digest_of_network(model: Model, given: ModelInput) -> str:
    """Dense values of models with the same digest have the same names, shapes, meaning and optimizer state."""
    parts = (
        model.network.model_dump_json(by_alias=True),
        model.output,
        model.embedding_dim,
        model.dense.adam_d2sum,
        list(given.slots),
        list(given.numbers),
    )
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
