"""A Backend whose machine is a dictionary, and whose line is as bad as a test wants."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from elastic_ctr.store.backends import AlreadyPublished, NotInStore, StoreUnavailable
from elastic_ctr.store.backends.backend import Body, Stat
from elastic_ctr.store.backends.renaming import RenamingBackend

Fault = Callable[[str], str | None]
"""Asked before each call, with its name: None, "refused" (nothing was done) or "unheard" (done, but nobody heard)."""


class MemoryRemote(RenamingBackend):
    def __init__(self, fault: Fault = lambda _: None) -> None:
        self.url = "memory://"
        self.fault = fault
        self.files: dict[str, tuple[int, bytes]] = {}
        self.reads: list[int] = []
        self.block = 4
        self.breaks_after: Callable[[], int | None] = lambda: None
        self.ignores_start = False
        self._writes = 0

    @contextmanager
    def _asked(self, name: str) -> Iterator[None]:
        fault = self.fault(name)
        if fault == "refused":
            raise StoreUnavailable(f"{name} was refused")
        yield
        if fault == "unheard":
            raise StoreUnavailable(f"{name} was not heard of")

    def stat(self, path: str, deed: str = "looked up in") -> Stat:  # noqa: ARG002
        with self._asked("stat"):
            return self._stat(path)

    def _stat(self, path: str) -> Stat:
        if path in self.files:
            number, data = self.files[path]
            return Stat(len(data), float(number), identity=str(number))
        if path == "" or any(each.startswith(f"{path}/") for each in self.files):
            return Stat(0, 0.0, folder=True)
        raise NotInStore(f"{path} is not in {self.url}")

    def list(self, folder: str) -> list[tuple[str, Stat]]:
        with self._asked("list"):
            if not self._stat(folder).folder:
                raise NotInStore(f"{folder} is no folder")
            above = f"{folder}/" if folder else ""
            names = {each[len(above) :].partition("/")[0] for each in self.files if each.startswith(above)}
            return [(name, self._stat(above + name)) for name in names]

    @contextmanager
    def read(self, path: str, start: int) -> Iterator[Body]:
        with self._asked("read"):
            stat = self._stat(path)
            if stat.folder:
                raise NotInStore(path)
            self.reads.append(start)
            first = 0 if self.ignores_start else min(start, stat.size)
            yield Body(stat, first, self._blocks(self.files[path][1][first:]))

    def _blocks(self, data: bytes) -> Iterator[bytes]:
        broken = self.breaks_after()
        for at in range(0, len(data), self.block):
            if broken is not None and at >= broken:
                raise StoreUnavailable("the line broke")
            yield data[at : at + self.block]

    def put(self, content: bytes | BinaryIO, path: str, target: str) -> None:  # noqa: ARG002
        data = content if isinstance(content, bytes) else content.read()
        with self._asked("put"):
            self._writes += 1
            self.files[path] = (self._writes, data)

    def move(self, source: str, target: str, *, overwrite: bool) -> None:
        with self._asked("move"):
            if target in self.files and not overwrite:
                raise AlreadyPublished(f"{target} is already published in {self.url}")
            if source not in self.files:
                raise NotInStore(f"{source} is not in {self.url}")
            self.files[target] = self.files.pop(source)

    def delete(self, path: str) -> None:
        with self._asked("delete"):
            for each in [each for each in self.files if each == path or each.startswith(f"{path}/")]:
                del self.files[each]

    def close(self) -> None:
        pass
