"""The disk space of a row in a SQLite file (https://sqlite.org/fileformat2.html, 1.6): pages have 4096 bytes, and a longer row
continues in overflow pages. A row of just over half a page wastes almost half of it, so the bytes of the texts are a poor estimate.
"""

_PAGE = 4096
# Usable bytes of a leaf page, the longest row without overflow, and the least bytes of a longer row that stay on the leaf.
_ON_LEAF, _MOST, _LEAST = _PAGE - 8, _PAGE - 35, (_PAGE - 12) * 32 // 255 - 23
_ON_OVERFLOW = _PAGE - 4
# Bytes of a row beside its texts (its numbers, and the types of its columns), and of its cell (its length and its pointer).
_BESIDE, _CELL = 27, 8
# Bytes of an index entry beside its text. An index page is two thirds full on average.
_ENTRY, _ENTRIES_PER_PAGE = 12, 1.5


def bytes_of_row(texts: int) -> int:
    """Return the bytes of disk of a row whose texts have `texts` bytes, in a table of rows of that size."""
    size = texts + _BESIDE
    if size <= _MOST:
        return _PAGE // (_ON_LEAF // (size + _CELL))
    here = _LEAST + (size - _LEAST) % _ON_OVERFLOW
    if here > _MOST:
        here = _LEAST
    overflowing = -(-(size - here) // _ON_OVERFLOW)
    return overflowing * _PAGE + _PAGE // (_ON_LEAF // (here + _CELL))


def bytes_of_entry(text: int) -> int:
    """Return the bytes of disk of an index entry for a text of so many bytes, or for a number."""
    return int(_ENTRIES_PER_PAGE * (text + _ENTRY))
