"""The base of all settings classes: frozen, camelCase outside, and closed to unknown keys."""

import json
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue
from pydantic.alias_generators import to_camel

# The last whole number that Helm and JSON readers tell from the next one; above it they round without a word.
EXACT = 2**53 - 1

# Begins the names of the alternatives of a setting, which pydantic puts into the place of an error; no key begins so.
ALTERNATIVE = "alternative:"

Count = Annotated[int, Field(ge=1, le=EXACT)]
Seconds = Annotated[float, Field(gt=0, le=EXACT)]
Hours = Annotated[float, Field(gt=0, le=EXACT)]
Port = Annotated[int, Field(ge=1, le=65535)]
OptionalPort = Annotated[int, Field(ge=0, le=65535)]
Share = Annotated[float, Field(ge=0, le=1)]


# Types that the chart's schema lets through where only text is right, for a rule of the chart refuses the others with `text_of`'s sentence.
TEXT_TYPES: list[JsonValue] = ["string", "number", "boolean"]


def text_of(what: str, given: object) -> str:
    """Raises ValueError where YAML has made something else of a text: 02134 and 1116 are one number to Helm's templates."""
    if isinstance(given, str):
        return given
    raise ValueError(f"{what} is text, and {json.dumps(given, default=str)} is none to YAML; write it in quotes")


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
