"""Statistics of the columns of the data, the content of `statistics.json`.

They are pinned for a model's life: the digest of the file is part of the model's. `features.statistics.collector` computes them.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel
from typing_extensions import Self

if TYPE_CHECKING:
    from elastic_ctr.formats.inputs import TextInput

TOP = 4096  # the length of the list of most frequent values, and the most of `vocabulary: {top: n}`
LONGEST = 256  # bytes of a value in this list
MOST_DEVIATIONS = 10.0
"""A number that is farther from the mean is an outlier. By Chebyshev's inequality fewer than 1 % of the numbers can be, so outliers are
always few; and a value that 1 % of the rows have is none, however rare it seems. A normal distribution has none."""
BUCKETS = 4096  # quantiles are kept at each 1/4096; this is also the most of `boundaries: {quantiles: n}`

_SQUARES = 1e150  # squares of smaller numbers, and sums of thousands of squares, are finite


class _Part(BaseModel):
    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, allow_inf_nan=False
    )


class _OfColumn(_Part):
    rows: int = Field(ge=0, description="Rows that were read.")
    missing: int = Field(ge=0, description="Rows without a value.")
    distinct: int = Field(ge=0, description="Different values, estimated by HyperLogLog: deviation 0.6 %.")

    @model_validator(mode="after")
    def _of_rows(self) -> Self:
        if self.missing > self.rows:
            raise ValueError(f"{self.missing} of {self.rows} rows are missing; analyze the data again")
        return self

    @property
    def missing_share(self) -> float:
        """The share of rows without a value; 0 without rows."""
        return self.missing / self.rows if self.rows else 0.0


class TextStatistics(_OfColumn):
    """Statistics of a text input. A cell of an input with a separator has several values."""

    values: int = Field(ge=0, description="Values in all rows.")
    mean_bytes: float = Field(ge=0, description="Mean length of a value in bytes of UTF-8.")
    top: tuple[tuple[str, int], ...] = Field(
        description="The most frequent values and their counts, falling. A value occurs as often as its count says, or up to "
        "`countError` times more. Values of more than 256 bytes are not listed."
    )
    count_error: int = Field(
        ge=0,
        description="0: all counts are exact. A value that is not listed occurs no more often than this and the last count "
        "together; if fewer values are listed than were asked for, no more often than this.",
    )

    @model_validator(mode="after")
    def _list(self) -> TextStatistics:
        counts = [count for _, count in self.top]
        if any(not value for value, _ in self.top) or any(count < 1 for count in counts):
            raise ValueError("top has an empty value, or one that occurs less than once; analyze the data again")
        if len({value for value, _ in self.top}) < len(self.top):
            raise ValueError("top has a value more than once; analyze the data again")
        if any(a < b for a, b in pairwise(counts)):
            raise ValueError("the counts of top rise somewhere; they fall, so analyze the data again")
        if sum(counts) > self.values:
            raise ValueError(f"top counts {sum(counts)} of {self.values} values; analyze the data again")
        return self

    @property
    def listed_share(self) -> float:
        """A lower bound of the share of values in the list; 0 without values."""
        return sum(count for _, count in self.top) / self.values if self.values else 0.0


class NumberStatistics(_OfColumn):
    """Statistics of a number input. Without a number, `min`, `max`, `mean` and `deviation` are None and there are no quantiles."""

    min: float | None = Field(description="The least number.")
    max: float | None = Field(description="The greatest number.")
    mean: float | None = Field(description="Their mean, exact but for one rounding.")
    deviation: float | None = Field(ge=0, description="Their standard deviation, of the population, as exact.")
    quantiles: tuple[float, ...] = Field(
        description="The number at rank i/4096 of their order, for i from 0 to 4096. The first is the least, the last the greatest."
    )

    @model_validator(mode="after")
    def _whole(self) -> NumberStatistics:
        facts = (self.min, self.max, self.mean, self.deviation)
        wanted = 0 if self.missing == self.rows else BUCKETS + 1
        if len(self.quantiles) != wanted or any((each is None) != (wanted == 0) for each in facts):
            raise ValueError(f"{self.rows - self.missing} numbers have {len(self.quantiles)} quantiles, not {wanted}")
        if any(a > b for a, b in pairwise(self.quantiles)):
            raise ValueError("the quantiles fall somewhere; they rise with their ranks")
        if self.min is not None and self.max is not None:
            if self.min > self.max:
                raise ValueError(
                    f"the least number {self.min:g} is above the greatest {self.max:g}; analyze the data again"
                )
            if self.quantiles[0] < self.min or self.quantiles[-1] > self.max:
                raise ValueError(f"quantiles are outside of {self.min:g} to {self.max:g}; analyze the data again")
        return self

    @property
    def values(self) -> int:
        return self.rows - self.missing

    @property
    def typical(self) -> tuple[float, float]:
        """Mean and deviation of the numbers without outliers, by the quantiles; of all numbers if the others are equal.

        With one damaged number in a thousand, 1e12 among 1 to 10, standardizing by all numbers would make the others equal.
        """
        # Computed without numpy, which clients that read no statistics should not import.
        kept = [each for each in self.quantiles if abs(each) < _SQUARES]
        while kept:
            mean = math.fsum(kept) / len(kept)
            deviation = math.sqrt(math.fsum((each - mean) ** 2 for each in kept) / len(kept))
            near = [each for each in kept if abs(each - mean) <= MOST_DEVIATIONS * deviation]
            if len(near) in (0, len(kept)):
                break
            kept = near
        if len(kept) in (0, len(self.quantiles)) or kept[0] == kept[-1]:
            return self.mean or 0.0, self.deviation or 0.0
        return mean, deviation

    def quantile(self, q: float) -> float:
        """Return the number at rank q, from 0 to 1; between two kept quantiles by linear interpolation, as numpy's `linear`.

        Raises:
            ValueError: q is not in 0 to 1, or the column has no number.
        """
        if not 0 <= q <= 1:
            raise ValueError(f"the quantile {q:g} does not exist; they are from 0 to 1")
        if not self.quantiles:
            raise ValueError("the column has no number in any row, so it has no quantiles; leave the feature out")
        part, place = math.modf(q * BUCKETS)
        low, high = self.quantiles[int(place)], self.quantiles[min(int(place) + 1, BUCKETS)]
        # A sum of two products, because the difference of two floats may be infinite.
        return low if low == high else min(max(low * (1 - part) + high * part, low), high)

    def share_up_to(self, x: float) -> float:
        """Return the share of the numbers that are <= x, in whole 4096ths."""
        return max(bisect_right(self.quantiles, x) - 1, 0) / BUCKETS

    def share_below(self, x: float) -> float:
        """Return the share of the numbers that are < x, in whole 4096ths."""
        return max(bisect_left(self.quantiles, x) - 1, 0) / BUCKETS


class Statistics(_Part):
    """The statistics of all columns that features read."""

    format: Literal[1] = Field(default=1, description="Of this file.")
    texts: dict[str, TextStatistics] = Field(description="By column, with the separator in brackets if there is one.")
    numbers: dict[str, NumberStatistics] = Field(description="By the name that the input has.")

    def to_json(self) -> str:
        """Return the text of the file, which is the same for the same statistics."""
        return json.dumps(
            self.model_dump(by_alias=True), ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Statistics:
        """Parse the text of the file. Raises ValueError with the field that is wrong."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as wrong:
            first = wrong.errors(include_url=False, include_input=False, include_context=False)[0]
            where = ".".join(map(str, first["loc"])) or "the file"
            raise ValueError(f"statistics.json is damaged: {where[:80]}: {first['msg'][:200]}") from wrong

    @property
    def digest(self) -> str:
        """Return the SHA-256 of the text, in hexadecimal."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()


def series_of(text: TextInput) -> str:
    """Return the name of a text input in `Statistics.texts`: `tags[|]` for the column `tags` with the separator `|`."""
    return f"{text.column}[{text.separator}]" if text.separator else text.column
