"""The converted hours of a search, as the process of a trial reads them. That process imports nothing that converts."""

from pydantic import BaseModel, ConfigDict


class SearchFailed(RuntimeError):
    """Nothing can be compared: a sentence."""


class Piece(BaseModel):
    """A converted file: its records, and how many of them `data.holdout` holds out."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    records: int
    held_out: int = 0


class TrainedPass(BaseModel):
    """A pass to train; shows and clicks are of all its records."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    pieces: tuple[Piece, ...]
    shows: int
    clicks: int
    ends_day: bool

    @property
    def records(self) -> int:
        return sum(piece.records for piece in self.pieces)


class Hours(BaseModel):
    """The records that trials are trained and validated with.

    Attributes:
        validation: not trained.
        validated: what those records are, in words.
        share: of the records that were taken; 1 where the passes are whole.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    passes: tuple[TrainedPass, ...]
    validation: tuple[Piece, ...]
    validated: str
    share: float

    @property
    def records(self) -> int:
        return sum(each.records for each in self.passes)

    @property
    def trained(self) -> str:
        """The passes in words."""
        first, last = self.passes[0].id, self.passes[-1].id
        return first if first == last else f"{first} to {last} ({len(self.passes)} passes)"

    @property
    def validation_records(self) -> int:
        return sum(piece.records for piece in self.validation)
