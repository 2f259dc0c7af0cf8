"""SQLite files in write-ahead mode, with nested transactions and a numbered schema."""

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from typing_extensions import Self

Migration = Callable[[sqlite3.Connection], None]
"""Changes the tables of one schema number to those of the next one, within a transaction that it does not end."""


class NewerSchema(ValueError):
    """A newer release has written the file. The message has the way out."""


class SqliteFile:
    """One connection to a file. Nested `with` blocks are one transaction, which a crash keeps whole or not at all.

    The file's `user_version` is its schema number: the count of `migrations` that it has had. Opening it applies the missing ones in one
    transaction. A file of an earlier release, which wrote no number, has 0.
    """

    def __init__(self, path: Path, migrations: Sequence[Migration]) -> None:
        """Raises NewerSchema, sqlite3.Error."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.db = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._depth = 0
        # True after a transaction failed because the file was not writable: the owner's memory may be ahead of the file.
        self.torn = False
        try:
            self.db.execute("pragma journal_mode = wal")
            self.db.execute("pragma synchronous = full")
            # Deleted content need not be overwritten: its pages are reused.
            self.db.execute("pragma secure_delete = off")
            self._migrate(path, migrations)
        except BaseException:
            self.db.close()
            raise

    def _migrate(self, path: Path, migrations: Sequence[Migration]) -> None:
        [number] = self.one("pragma user_version")
        if number > len(migrations):
            raise NewerSchema(
                f"{path} has schema number {number} and this release knows up to {len(migrations)}, because a newer release has written it: "
                "go on with that release, or put a copy of the file back that this release has written"
            )
        if number < len(migrations):
            with self:
                for migrate in migrations[number:]:
                    migrate(self.db)
                self.db.execute(f"pragma user_version = {len(migrations)}")

    def close(self) -> None:
        self.db.close()

    @property
    def changes(self) -> int:
        """Return the number of rows written since this object was made."""
        return self.db.total_changes

    def __enter__(self) -> Self:
        if self._depth == 0:
            self._turn("begin immediate")
        self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._depth -= 1
        if self._depth:
            return
        if kind is None:
            self._turn("commit")
        else:
            self._undo(torn=issubclass(kind, sqlite3.OperationalError))

    def _turn(self, sql: str) -> None:
        try:
            self.db.execute(sql)
        except sqlite3.Error:
            self._undo(torn=True)
            raise

    def _undo(self, *, torn: bool) -> None:
        self.torn = self.torn or torn
        # On a full disk SQLite may have rolled back by itself.
        if self.db.in_transaction:
            self.db.execute("rollback")

    def all(self, sql: str, *values: Any) -> list[Any]:
        return self.db.execute(sql, values).fetchall()

    def one(self, sql: str, *values: Any) -> Any:
        """Return the first row, or None."""
        return self.db.execute(sql, values).fetchone()

    def do(self, sql: str, *values: Any) -> None:
        """Execute a statement in a transaction of its own or in the one under way."""
        with self:
            self.db.execute(sql, values)


def copy_database(source: Path, target: Path) -> None:
    """Copy a file as it is at one moment, while its owner may write to it. Raises sqlite3.Error, also if the copy is damaged."""
    # Not `connect(path)`, which would create an absent file.
    address = f"{source.resolve().as_uri()}?mode=rw"
    with closing(sqlite3.connect(address, uri=True)) as read, closing(sqlite3.connect(target)) as written:
        # All pages in one step: other processes write between two steps, and each write begins the copy again.
        read.backup(written, pages=-1)
        # The copy is one file: its reader needs no write-ahead log beside it.
        written.execute("pragma journal_mode = delete")
        [found] = written.execute("pragma quick_check(1)").fetchone()
    if found != "ok":
        raise sqlite3.DatabaseError(f"{source}: {' '.join(found.split())}")


def schema_of(path: Path) -> int:
    """Return the schema number of a file that no process has open. Raises sqlite3.Error."""
    # Without `immutable` SQLite would make files beside one in write-ahead mode.
    with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        [number] = db.execute("pragma user_version").fetchone()
    return int(number)


def delete_beside(path: Path) -> None:
    """Delete the logs that a lost file has left behind. Raises OSError."""
    for ending in ("-wal", "-shm", "-journal"):
        path.with_name(f"{path.name}{ending}").unlink(missing_ok=True)


def tables(sql: str) -> Migration:
    """Return the migration that executes these statements, each ending with a semicolon."""

    def migrate(db: sqlite3.Connection) -> None:
        # Not `executescript`, which would commit the transaction under way.
        for statement in filter(str.strip, sql.split(";")):
            db.execute(statement)

    return migrate
