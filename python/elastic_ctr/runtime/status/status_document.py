"""Common to the status documents: how they are built, written and read."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class StatusDocument(BaseModel):
    """A JSON document with camelCase keys. Its reader may be of an earlier or a later release than the role that built it.

    Fields that an earlier release lacks have defaults, and keys of a later release are kept. `from_attributes` lets
    `model_validate` copy the fields of another class.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="allow", frozen=True, from_attributes=True
    )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON without the fields that were not set."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


class PublishingHold(StatusDocument):
    """A pause of publishing, which the master begins and an operator ends."""

    number: int = Field(0, description="Its number.")
    suspects: tuple[int, int] | None = Field(None, description="The oldest and the newest suspected version.")
    reason: str = Field(description="A sentence with the figures.")
    held_at: float = Field(0.0, description="Unix seconds at which it began.")
    unreadable: bool = Field(False, description="Its file is damaged; absent otherwise.")
    since: str | None = Field(None, description="The pass at which it began; of the master only.")
