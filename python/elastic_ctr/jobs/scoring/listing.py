"""The files to read: complete hours of a source, or files of this machine."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from elastic_ctr.config.data import Data
from elastic_ctr.config.load import settings
from elastic_ctr.sources.tables.table_address import open_table
from elastic_ctr.sources.tables.table_log import TableCommit
from elastic_ctr.store.backends.source import Source
from elastic_ctr.training.master.calendar.schedule import splits
from elastic_ctr.training.master.calendar.split_files import SplitFiles, splits_there
from elastic_ctr.training.master.calendar.table_schedule import refused_commit


class NothingToRead(ValueError):
    """No hour is complete, or no file exists; the text is a sentence."""


class Listing(NamedTuple):
    """Files by their paths in the source: their bytes, their splits (or names), and their names in the tree of outputs.

    `hours` are the complete splits, including those without files; splits in `waiting` are not complete and are left out.
    """

    files: dict[str, int]
    splits: dict[str, str]
    names: dict[str, str]
    hours: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


def at_hours(data: Data, hours: str, option: str) -> Data:
    """Return the data of FIRST..LAST, or of one hour. Raises ConfigRefused."""
    first, dots, last = hours.partition("..")
    return with_span(data, first, last if dots else first, f"{option} {hours}")


def with_span(data: Data, first: str | None, last: str | None, name: str) -> Data:
    """Return the data with another first and last split, where these are given. Raises ConfigRefused, which has the name."""
    told = {key: split for key, split in (("start", first), ("end", last)) if split is not None}
    if not told:
        return data
    return settings(Data, {**data.model_dump(by_alias=True, exclude_defaults=True), **told}, name)


def complete_hours(source: Source, data: Data, *, chosen: bool) -> Listing:
    """List the splits from data.start to data.end: all of them if they were `chosen`, else those that have a folder. Or the rows of a table.

    Raises NothingToRead, StoreError.
    """
    if data.is_table:
        return _rows_of_table(data)
    files: dict[str, int] = {}
    found: dict[str, str] = {}
    hours: list[str] = []
    waiting: list[str] = []
    looks = SplitFiles(source, data, at_once=True)
    for split in splits(data) if chosen else splits_there(source, data):
        listed = looks.look((split,))
        (waiting if listed.missing else hours).append(split)
        files.update(listed.files)
        found.update(dict.fromkeys(listed.files, split))
    if not hours:
        where = f"{source.url.rstrip('/')}/{data.path.strip('/')}".rstrip("/")
        until = "" if data.end is None else f" to {data.end}"
        complete = f"with a {data.donefile}" if data.settle_seconds is None else "that has settled"
        raise NothingToRead(
            f"{where} has no hour {complete} from {data.start}{until}; is data.path right, and data.start?"
        )
    # Outputs are in folders by split, wherever the split lies, and below them in those of its partitions.
    names = {path: f"{split}{path.removeprefix(data.folder_of(split))}" for path, split in found.items()}
    return Listing(files, found, names, tuple(hours), tuple(waiting))


def _rows_of_table(data: Data) -> Listing:
    """List the files of the commits behind data.start up to data.end; with `earliest`, of the whole table as of data.end.

    Raises NothingToRead, StoreError.
    """
    table = open_table(data.source)
    last = data.end or table.newest()
    commits: Iterable[TableCommit] = ()
    if data.start == "earliest":
        commits = [table.whole(last)] if last else ()
    elif data.start != "latest" and table.may_follow(last, data.start):
        commits = table.since(data.start)
    found: dict[str, tuple[str, int]] = {}
    for commit in commits:
        if refused := refused_commit(table.url, commit, data):
            raise NothingToRead(refused)
        if not commit.removes:
            found |= {path: (commit.id, size) for path, size in commit.files.items()}
        if commit.id == last:
            break
    if not found:
        raise NothingToRead(
            f"{table.url} has no rows behind {data.start} up to {last}; give an earlier start, or a later end"
        )
    commits_of = {path: commit for path, (commit, _) in found.items()}
    names = {path: f"{commit}/{urlsplit(path).path.lstrip('/')}" for path, commit in commits_of.items()}
    return Listing(
        {path: size for path, (_, size) in found.items()}, commits_of, names, tuple(dict.fromkeys(commits_of.values()))
    )


def given_files(paths: Sequence[Path]) -> Listing:
    """List files of this machine, for the source `file:///`; the output tree is relative to their common folder.

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
