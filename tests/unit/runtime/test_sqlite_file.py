import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest

from elastic_ctr.runtime.sqlite_file import NewerSchema, SqliteFile, copy_database, tables

FIRST = tables("create table if not exists a (x); insert into a values (1);")
SECOND = tables("alter table a add column y; create table b (z);")


def schema_of(path: Path) -> tuple[int, list[str]]:
    with closing(sqlite3.connect(path)) as db:
        [number] = db.execute("pragma user_version").fetchone()
        return number, [sql for (sql,) in db.execute("select sql from sqlite_master order by name")]


def test_a_new_file_gets_the_tables_of_all_migrations_and_their_number(tmp_path: Path) -> None:
    with closing(SqliteFile(tmp_path / "new" / "file.db", (FIRST, SECOND))) as file:
        assert file.all("select x, y from a") == [(1, None)]

    assert schema_of(tmp_path / "new" / "file.db") == (2, ["CREATE TABLE a (x, y)", "CREATE TABLE b (z)"])


def test_a_file_of_an_earlier_number_gets_the_migrations_that_it_lacks_once(tmp_path: Path) -> None:
    SqliteFile(tmp_path / "file.db", (FIRST,)).close()

    for _ in range(2):
        with closing(SqliteFile(tmp_path / "file.db", (FIRST, SECOND))) as file:
            assert file.all("select x, y from a") == [(1, None)]


def test_a_file_of_a_newer_number_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    SqliteFile(tmp_path / "file.db", (FIRST, SECOND)).close()

    with pytest.raises(NewerSchema, match=r"file\.db has schema number 2 and this release knows up to 1"):
        SqliteFile(tmp_path / "file.db", (FIRST,))

    assert schema_of(tmp_path / "file.db")[0] == 2


def test_a_migration_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    SqliteFile(tmp_path / "file.db", (FIRST,)).close()

    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        SqliteFile(tmp_path / "file.db", (FIRST, SECOND, tables("insert into absent values (1);")))

    assert schema_of(tmp_path / "file.db") == (1, ["CREATE TABLE a (x)"])


def test_a_process_that_dies_in_a_migration_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    SqliteFile(tmp_path / "file.db", (FIRST,)).close()
    program = (
        "import os, sys\n"
        "from pathlib import Path\n"
        "from elastic_ctr.runtime.sqlite_file import SqliteFile, tables\n"
        "second = tables('alter table a add column y; create table b (z);')\n"
        "SqliteFile(Path(sys.argv[1]), (second, second, lambda db: os._exit(9)))\n"
    )

    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path / "file.db")], check=False)

    assert ended.returncode == 9
    assert schema_of(tmp_path / "file.db") == (1, ["CREATE TABLE a (x)"])


def test_a_copy_has_the_whole_transactions_and_the_number_of_a_file_that_is_written_meanwhile(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "file", [tables("create table rows (value integer)")])
    stop = threading.Event()

    def write() -> None:
        writer = SqliteFile(tmp_path / "file", [tables("")])
        while not stop.is_set():
            with writer:
                writer.db.execute("insert into rows values (1)")
                writer.db.execute("insert into rows values (-1)")
        writer.close()

    thread = threading.Thread(target=write)
    thread.start()
    sums = []
    for number in range(20):
        copy_database(tmp_path / "file", tmp_path / f"copy{number}")
        assert not (tmp_path / f"copy{number}-wal").exists()
        with closing(sqlite3.connect(tmp_path / f"copy{number}")) as copy:
            sums.append(copy.execute("select count(*), coalesce(sum(value), 0) from rows").fetchone())
            assert copy.execute("pragma user_version").fetchone() == (1,)
    stop.set()
    thread.join()
    file.close()

    assert [total for _, total in sums] == [0] * len(sums)
    assert sums[-1][0] > 0


def test_a_copy_of_an_absent_file_is_refused_and_makes_none(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        copy_database(tmp_path / "absent", tmp_path / "copy")

    assert not (tmp_path / "absent").exists()
