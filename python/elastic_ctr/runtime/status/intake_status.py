"""The status of the intake."""

from pydantic import Field

from elastic_ctr.runtime.status.status_document import StatusDocument


class AcceptedCounts(StatusDocument):
    """Counts since the process began."""

    requests: int = Field(0, description="Requests.")
    records: int = Field(0, description="Lines.")
    bytes: int = Field(0, description="Bytes of these lines.")


class LateClickCounts(StatusDocument):
    """Clicks that came after their impression, since the process began."""

    joined: int = Field(0, description="Joined to their impression.")
    unmatched: int = Field(0, description="Dropped, without a remembered impression.")
    duplicate: int = Field(0, description="Dropped, of an impression that was clicked before.")
    crowded_out: int = Field(0, description="Impressions that were forgotten early, because there were too many.")


class DamagedRange(StatusDocument):
    first: int = Field(description="The first.")
    end: int = Field(description="The one after the last.")


class IntakeTopicStatus(StatusDocument):
    url: str = Field(description="Its address.")
    records: int = Field(0, description="Lines appended.")
    lag: int | None = Field(None, description="Messages that are not in the log yet; null: unknown.")
    gone: int = Field(0, description="Offsets that the topic had dropped before they were read.")
    dropped: int = Field(0, description="Messages that were too long.")
    waits: bool = Field(False, description="Messages are left to the topic, because training is behind.")
    error: str | None = Field(None, description="Why it, or a part of it, cannot be read.")


class IntakeStatus(StatusDocument):
    """Answered by the intake."""

    role: str = Field("intake", description="intake.")
    partition: str = Field(description="The name of its log.")
    first: int = Field(0, description="The first offset that is kept.")
    end: int = Field(description="The offset of the next line.")
    needed_from: int = Field(0, description="The first offset that training has not saved.")
    bytes: int = Field(0, description="Bytes of the disk that the lines take.")
    accepted: AcceptedCounts = Field(AcceptedCounts(), description="Accepted requests and lines.")
    late_clicks: LateClickCounts = Field(LateClickCounts(), description="Late clicks by outcome.")
    repeated: int = Field(0, description="Requests that were answered by their Idempotency-Key.")
    refused: int = Field(0, description="Requests that were refused or could not be written.")
    damaged: tuple[DamagedRange, ...] = Field((), description="Damaged batches of the log.")
    error: str | None = Field(None, description="Why the last transaction was not written.")
    topic: IntakeTopicStatus | None = Field(None, description="The topic, if there is one.")
