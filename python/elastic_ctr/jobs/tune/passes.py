"""The converted hours of a search, for the process of a trial, which does not import the converter."""

from pydantic import BaseModel, ConfigDict


class SearchFailed(RuntimeError):
    """The search has nothing to compare; the text is a sentence."""


class ConvertedPiece(BaseModel):
    """A converted file: its number of records, and of those that `data.holdout` excludes from training."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: str
    records: int
    held_out: int = 0


class TrainedPass(BaseModel):
    """A pass to train; shows and clicks are sums over all its records."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    pieces: tuple[ConvertedPiece, ...]
    shows: int
    clicks: int
    ends_day: bool

    @property
    def records(self) -> int:
        return sum(piece.records for piece in self.pieces)


class Hours(BaseModel):
    """The records that trials are trained and validated with.

    Attributes:
        validation: pieces of records that are not trained.
        validated: a description of those records in words.
        share: the share of records that were kept; 1 if the passes are whole.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    passes: tuple[TrainedPass, ...]
    validation: tuple[ConvertedPiece, ...]
    validated: str
    share: float

    @property
    def records(self) -> int:
        return sum(each.records for each in self.passes)

    @property
    def trained(self) -> str:
        """A description of the trained passes in words."""
        first, last = self.passes[0].id, self.passes[-1].id
        return first if first == last else f"{first} to {last} ({len(self.passes)} passes)"

    @property
    def validation_records(self) -> int:
        return sum(piece.records for piece in self.validation)
