r"""Words that stand for an empty cell, such as the `\N` that Hive writes and the `NaN` of pandas.

Readers of files and of requests use the same words, so that training and serving agree. A cell is missing if its whole text is one.
"""

from __future__ import annotations

from typing import NamedTuple

_OF_PROGRAMS = ("\\N", "NULL", "null", "NaN", "nan", "None", "N/A", "<NA>", "#N/A", "(null)")


class MissingWords(NamedTuple):
    """The words for cells that are read as text, and for cells that are read as numbers."""

    texts: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()


NO_WORDS = MissingWords()

USUAL_WORDS = MissingWords(
    _OF_PROGRAMS,
    (*_OF_PROGRAMS, "Null", "NAN", "none", "NA", "na", "n/a", "#NA", "#NULL!", "NaT", "nil", "?", "-", "--", "."),
)
"""Those that programs write. `NA`, `none`, `-` and `?` are missing numbers alone: as categories they are Namibia, a value of surveys,
or a value that somebody gave.
"""
