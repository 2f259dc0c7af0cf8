"""Inputs that are almost right: golden ones with bits, bytes, lengths and pieces changed."""

import random
from collections.abc import Sequence

Field = tuple[int, int]  # where a number stands, and its bytes
NUMBERS = (0, 1, 2, 7, 8, 9, 23, 24, 25, 63, 64, 65, 127, 128, 255, 256, 1 << 15, (1 << 16) - 1, 1 << 16, (1 << 24) - 1)
_LARGEST = (1 << 31) - 1, 1 << 31, (1 << 32) - 25, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 9, (1 << 64) - 1


class Mutator:
    """Changes bytes, the same way for the same seed. big: numbers have their high byte first."""

    def __init__(self, seed: int, *, big: bool = False) -> None:
        self.random = random.Random(seed)
        self._order = "big" if big else "little"

    def mutated(self, golden: bytes, fields: Sequence[Field] = (), others: Sequence[bytes] = ()) -> bytes:
        """Golden with none to four changes; fields are its numbers, others may lend pieces."""
        data = bytearray(golden)
        for _ in range(self.random.choice((0, 1, 1, 1, 2, 2, 3, 4))):
            self._change(data, fields, others)
        return bytes(data)

    def _change(self, data: bytearray, fields: Sequence[Field], others: Sequence[bytes]) -> None:
        draw = self.random
        kind = draw.randrange(10 if fields else 6)
        at = draw.randrange(len(data) + 1)
        if kind == 0 and data:
            data[at % len(data)] ^= 1 << draw.randrange(8)
        elif kind == 1 and data:
            data[at % len(data)] = draw.randrange(256)
        elif kind == 2:
            del data[at:]
        elif kind == 3:
            del data[at : at + draw.randrange(1, 40)]
        elif kind == 4:
            data[at:at] = draw.randbytes(draw.randrange(1, 40))
        elif kind == 5:
            lender = draw.choice(others) if others else bytes(data)
            start = draw.randrange(len(lender) + 1)
            data[at:at] = lender[start : start + draw.randrange(1, 200)]
        elif fields:
            self._renumber(data, *draw.choice(fields))

    def _renumber(self, data: bytearray, at: int, width: int) -> None:
        """Put another number into a field: near the one that stands there, or one at which arithmetic breaks."""
        if at + width > len(data):
            return
        draw = self.random
        order = "big" if self._order == "big" else "little"
        old = int.from_bytes(data[at : at + width], "big" if order == "big" else "little")
        number = old + draw.choice((-8, -4, -1, 1, 4, 8)) if draw.random() < 0.4 else draw.choice((*NUMBERS, *_LARGEST))
        data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "big" if order == "big" else "little")
