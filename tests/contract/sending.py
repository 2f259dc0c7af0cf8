"""A local file with whose bytes something happens while it is being sent."""

import io
import os
from collections.abc import Callable
from pathlib import Path, PosixPath
from typing import Any


class Sending(PosixPath):
    """As the file at `path`, but `happens` is called once, when more than `after` bytes have been read."""

    after: int
    pending: list[Callable[[], None]]

    @classmethod
    def of(cls, path: Path, after: int, happens: Callable[[], None]) -> "Sending":
        made = cls(path)
        made.after = after
        made.pending = [happens]
        return made

    def open(self, *_: Any, **__: Any) -> Any:
        return _Stream(self)


class _Stream(io.FileIO):
    def __init__(self, sending: Sending) -> None:
        super().__init__(os.fspath(sending), "rb")
        self._sending = sending

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(-1 if size is None else size)
        if self.tell() > self._sending.after and self._sending.pending:
            self._sending.pending.pop()()
        return data or b""
