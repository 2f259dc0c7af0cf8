"""The files to read: complete hours of a source, or files of this machine."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from elastic_ctr.config.data import Data
from elastic_ctr.store.source import Source
from elastic_ctr.training.master.calendar.schedule import look, splits, splits_there


class NothingToRead(ValueError):
    """No hour is complete, or no file is there: a sentence."""


class Listing(NamedTuple):
    """Files by their paths in the source: bytes, the split (or name) that each belongs to, its name in a tree of outputs.

    `hours` are the complete splits, also those without a file; `waiting` have no donefile and are left out.
    """

    files: dict[str, int]
    splits: dict[str, str]
    names: dict[str, str]
    hours: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


def complete_hours(source: Source, data: Data, *, chosen: bool) -> Listing:
    """The splits from data.start to data.end: all of them if they were `chosen`, else those that have a folder.

    Raises NothingToRead, StoreError.
    """
    files: dict[str, int] = {}
    found: dict[str, str] = {}
    hours: list[str] = []
    waiting: list[str] = []
    for split in splits(data) if chosen else splits_there(source, data):
        there, missing = look(source, data, (split,))
        (waiting if missing else hours).append(split)
        files.update(there)
        found.update(dict.fromkeys(there, split))
    if not hours:
        where = f"{source.url.rstrip('/')}/{data.path.strip('/')}".rstrip("/")
        until = "" if data.end is None else f" to {data.end}"
        raise NothingToRead(
            f"{where} has no hour with a {data.donefile} from {data.start}{until}; is data.path right, and data.start?"
        )
    names = {path: f"{split}/{path.rpartition('/')[2]}" for path, split in found.items()}
    return Listing(files, found, names, tuple(hours), tuple(waiting))


def given_files(paths: Sequence[Path]) -> Listing:
    """Files of this machine, for the source `file:///`; in the output they stand as below the folder that all of them are in.

    Raises NothingToRead, OSError.
    """
    whole = [path.resolve() for path in paths]
    for path in whole:
        if path.is_dir():
            raise NothingToRead(f"{path} is a folder; name its files, or hours of data.source by --from and --to")
    common = os.path.commonpath([path.parent for path in whole])
    inside = {path: str(path).lstrip("/") for path in whole}
    names = {inside[path]: str(path.relative_to(common)) for path in whole}
    return Listing({inside[path]: path.stat().st_size for path in whole}, dict(names), names)
