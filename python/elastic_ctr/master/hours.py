"""Looking for hours: a pass is complete when every one of its splits has its donefile."""

from elastic_ctr.config.data import Data
from elastic_ctr.master.passes import cut
from elastic_ctr.store.source import Source

# Zipped text cannot be cut.
_WHOLE = (".gz",)


def look(source: Source, data: Data, splits: tuple[str, ...]) -> tuple[dict[str, int], str]:
    """Files of a pass with their bytes, and the first split whose donefile is missing ("" when complete).

    Paths are relative to the source. Hidden files and the donefile itself are no data. Raises StoreError.
    """
    files: dict[str, int] = {}
    for split in splits:
        folder = f"{data.path.strip('/')}/{split}".lstrip("/")
        listed = dict(source.list(folder))
        if data.donefile not in listed:
            return {}, split
        files.update(
            {
                f"{folder}/{name}": size
                for name, size in listed.items()
                if name != data.donefile and not name.startswith((".", "_"))
            }
        )
    return files, ""


def ranges(files: dict[str, int], task_bytes: int) -> list[tuple[str, int, int]]:
    """The tasks of a pass: (path, first byte, byte after the last; 0: to the end). An empty file makes no task."""
    return [
        (path, start, stop)
        for path, size in sorted(files.items())
        if size
        for start, stop in cut(size, task_bytes, whole=path.endswith(_WHOLE))
    ]
