"""The columns that features read, and the ways of reading them, which determine the cells of a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

_OF_PROGRAMS = ("\\N", "NULL", "null", "NaN", "nan", "None", "N/A", "<NA>", "#N/A", "(null)")


class MissingWords(NamedTuple):
    """The words for cells that are read as text, and for cells that are read as numbers."""

    texts: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()

    @classmethod
    def of(cls, words: tuple[str, ...] | None) -> MissingWords:
        """Return the words of `data.missing`, or the usual ones if it is absent."""
        return USUAL_WORDS if words is None else cls(words, words)


NO_WORDS = MissingWords()

USUAL_WORDS = MissingWords(
    _OF_PROGRAMS,
    (*_OF_PROGRAMS, "Null", "NAN", "none", "NA", "na", "n/a", "#NA", "#NULL!", "NaT", "nil", "?", "-", "--", "."),
)
"""Those that programs write. `NA`, `none`, `-` and `?` are missing numbers alone: as categories they are Namibia, a value of surveys,
or a value that somebody gave.
"""


class TextInput(NamedTuple):
    """A column that is read as text. `separator` is empty, or the one ASCII character between the values of a cell."""

    column: str
    separator: str


@dataclass(frozen=True, slots=True)
class InputColumns:
    """The columns of a row that features read, in the order of the cells. A column may be read in several ways.

    A cell whose text is one of the words `missing` is empty.
    """

    texts: tuple[TextInput, ...]
    numbers: tuple[str, ...]
    missing: MissingWords = NO_WORDS

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that is read, once."""
        return tuple(dict.fromkeys([*(each.column for each in self.texts), *self.numbers]))

    @property
    def in_both_ways(self) -> tuple[tuple[int, int], ...]:
        """(text cell, number cell) of each column that is read as text and as a number.

        A request has one value for both cells, so readers refuse rows whose value is not a whole number below 2^53.
        """
        of_text = {each.column: place for place, each in enumerate(self.texts)}
        return tuple((of_text[column], place) for place, column in enumerate(self.numbers) if column in of_text)
