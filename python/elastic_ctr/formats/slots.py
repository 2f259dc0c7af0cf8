"""The slot list: the features of a line that are read, in the order of the network's input."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

# A line is printable ASCII, its tokens are separated by blanks and its feasigns end at the colon, so no other name can occur.
_NAME = re.compile(r"[!-9;-~]+")


@dataclass(frozen=True, slots=True)
class SlotList:
    """Slot names in order; training and serving must use the same list in the same order.

    Raises:
        ValueError: the list is empty, a name occurs twice, or a name cannot occur in a line.
    """

    names: tuple[str, ...]
    _index: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.names:
            raise ValueError("the slot list is empty; name at least one slot.")
        for name in self.names:
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"the slot name {name!r} cannot stand in a line; use printable ASCII without blank or colon."
                )
        twice = [name for name, times in Counter(self.names).items() if times > 1]
        if twice:
            raise ValueError(f"the slot list names {', '.join(twice)} more than once; name each slot once.")
        object.__setattr__(self, "_index", {name: index for index, name in enumerate(self.names)})

    @classmethod
    def parse(cls, source: Sequence[int | str] | str) -> SlotList:
        """Parse a list of names or numbers, or the text of a slot.conf (one per line, blank lines and CR allowed)."""
        if isinstance(source, str):
            return cls(tuple(name for line in source.split("\n") if (name := line.strip())))
        strange = [name for name in source if isinstance(name, bool) or not isinstance(name, (int, str))]
        if strange:
            raise ValueError(f"the slot {strange[0]!r} is neither a number nor text; write it in quotes.")
        return cls(tuple(str(name) for name in source))

    def index(self, name: str) -> int:
        """Return the index of a slot in the list. Raises KeyError if it is not in the list."""
        return self._index[name]

    def text(self) -> str:
        """Return the text of the slot.conf of this list."""
        return "".join(f"{name}\n" for name in self.names)

    def check(self) -> int:
        """Return the CRC-32 of the slot.conf of this list, which covers names and their order."""
        return zlib.crc32(self.text().encode("ascii"))

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self._index
