"""What a row takes of a SQLite file (https://sqlite.org/fileformat2.html, 1.6): pages have 4096 bytes, and what does not fit into one is in
pages of its own. A row of half a page and more leaves as much of it empty, so the bytes of the texts alone say little.
"""

_PAGE = 4096
# Of a leaf, behind its header; of a row that is longer than the most, so much stays on the leaf at least.
_ON_LEAF, _MOST, _LEAST = _PAGE - 8, _PAGE - 35, (_PAGE - 12) * 32 // 255 - 23
_ON_OVERFLOW = _PAGE - 4
# Of a row beside its texts: numbers, the types of its columns, its length and its place on the page.
_BESIDE, _CELL = 27, 8
# A page of an index is two thirds full on the average.
_ENTRY, _ENTRIES_PER_PAGE = 12, 1.5


def bytes_of_row(texts: int) -> int:
    """Of a row of a table whose texts have so many bytes, among others of its size."""
    size = texts + _BESIDE
    if size <= _MOST:
        return _PAGE // (_ON_LEAF // (size + _CELL))
    here = _LEAST + (size - _LEAST) % _ON_OVERFLOW
    if here > _MOST:
        here = _LEAST
    overflowing = -(-(size - here) // _ON_OVERFLOW)
    return overflowing * _PAGE + _PAGE // (_ON_LEAF // (here + _CELL))


def bytes_of_entry(text: int) -> int:
    """Of an entry of an index by a text of so many bytes, or a number."""
    return int(_ENTRIES_PER_PAGE * (text + _ENTRY))
