"""The log of a table: its commits, and the Parquet files with the rows that each one added."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from elastic_ctr.store.backends import StoreError


class TableRefused(StoreError):
    """The rows after a commit cannot be known, or not be read; the text is a sentence with the way out."""


class CommitsGone(TableRefused):
    """The table no longer has the commits after one that passes have."""


@dataclass(frozen=True)
class TableCommit:
    """A commit of a table, or a whole version of it.

    Attributes:
        id: the version of a Delta table, or the id of an Iceberg snapshot.
        at: Unix seconds.
        operation: the writer's word for it, such as MERGE or append.
        files: the Parquet files of its rows by their paths in the source, with their bytes. A rewrite of rows that were in the table
            before, as a compaction is, has none.
        removes: rows of earlier commits are deleted or changed. `files` then have rows that are new, and others that are not.
        refused: why the rows of its files cannot be read as they stand, "" if they can.
    """

    id: str
    at: int
    operation: str
    files: Mapping[str, int]
    removes: bool = False
    refused: str = ""


class TableLog(Protocol):
    """Read-only. Its methods raise StoreError; TableRefused if only an operator can help."""

    url: str

    def newest(self) -> str:
        """Return the id of the last commit, "" before the first."""

    def mark(self, commit: str) -> str:
        """Return a text by which `since` later notices that the table with this commit was made anew; "" if it is gone."""

    def since(self, commit: str, mark: str = "") -> Iterator[TableCommit]:
        """Yield the commits after this one, the oldest first. Raises CommitsGone, and TableRefused if the table was made anew."""

    def whole(self, commit: str) -> TableCommit:
        """Return all rows of the table as of a commit."""

    def may_follow(self, commit: str, after: str) -> bool:
        """True if a commit comes behind the commit `after`, or may do so later."""


def commits_gone(url: str, after: str, until: str) -> CommitsGone:
    return CommitsGone(
        f"the commits of {url} between {after}, up to which passes have it, and {until} are gone: they expired, or the table was rolled "
        f'back; put its log back from a copy, or set data.start to "{until}" to go on behind it without their rows'
    )


def made_anew(url: str, commit: str) -> TableRefused:
    return TableRefused(
        f"{url} was made anew since passes had it up to {commit}: begin another model, or put the table back"
    )


def absent(url: str, package: str | None) -> TableRefused:
    return TableRefused(
        f"the log of {url} is read with {package}, which is not installed: give the master the trainer's image "
        "(master.image.repository), or install elastic-ctr's wheel with [tables]"
    )
