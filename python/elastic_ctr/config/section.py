"""The base of all settings classes: frozen, camelCase outside, and closed to unknown keys.

`XSettings` has those that a values file may set, in `config:` of the role's block. `XConfig` has those of the role file, with folders and
times that no operator needs to choose: `elastic-ctr local` and tests set them.
"""

import json
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_camel

# The largest integer that Helm and JSON readers distinguish from the next one; above it they round silently.
EXACT = 2**53 - 1

# Prefix of the tags of a setting's alternatives, which pydantic inserts into an error's `loc`; no key begins with it.
ALTERNATIVE = "alternative:"

Count = Annotated[int, Field(ge=1, le=EXACT)]
Seconds = Annotated[float, Field(gt=0, le=EXACT)]
Hours = Annotated[float, Field(gt=0, le=EXACT)]
Port = Annotated[int, Field(ge=1, le=65535)]
OptionalPort = Annotated[int, Field(ge=0, le=65535)]
Share = Annotated[float, Field(ge=0, le=1)]


def text_of(what: str, given: object) -> str:
    """Return `given`. Raises ValueError if YAML has read it as another type: Helm's templates cannot distinguish 02134 from 1116."""
    if isinstance(given, str):
        return given
    raise ValueError(f"{what} is text, and {json.dumps(given, default=str)} is none to YAML; write it in quotes")


SlotName = Annotated[str, BeforeValidator(lambda given: text_of("a slot", given))]


def _auto_or_count(given: object) -> object:
    if given == "auto" or (isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= EXACT):
        return given
    raise ValueError(f"{given!r} is neither auto nor a whole number from 1 to 2^53")


AutoCount = Annotated[Literal["auto"] | Count, BeforeValidator(_auto_or_count)]


class Section(BaseModel):
    """Settings of one domain. A key that is not a field is refused by name."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, allow_inf_nan=False
    )
