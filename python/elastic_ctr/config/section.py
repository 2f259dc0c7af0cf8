"""The base of all settings classes: frozen, camelCase outside, and closed to unknown keys."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

# The last whole number that Helm and JSON readers tell from the next one; above it they round without a word.
EXACT = 2**53 - 1

# Begins the names of the alternatives of a setting, which pydantic puts into the place of an error; no key begins so.
ALTERNATIVE = "alternative:"

Count = Annotated[int, Field(ge=1, le=EXACT)]
Seconds = Annotated[float, Field(gt=0, le=EXACT)]
Port = Annotated[int, Field(ge=1, le=65535)]
OptionalPort = Annotated[int, Field(ge=0, le=65535)]
Share = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """Settings of one domain. A key that is not a field is refused by name."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
    )
