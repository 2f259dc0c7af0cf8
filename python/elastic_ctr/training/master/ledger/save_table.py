"""The ledger's saves, versions and checkpoints.

A checkpoint includes all passes up to its own. A mid-pass one also has columns of its pass in `mid`, and those of tasks in `kept`.
"""

import json
from typing import Any

from elastic_ctr.training.master.ledger.ledger_file import LedgerFile
from elastic_ctr.training.master.ledger.rows import TABLES, Columns, SaveRow, Tables

# Columns of a task that training changes.
KEPT = "state, trained, repeated, positives, negatives"


class SaveTable:
    """The saves of passes, the versions and checkpoints that they made, and the rows of the sparse table after each."""

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

    def of(self, ordinal: int) -> SaveRow | None:
        return self._file.row(SaveRow, "saves where pass = ?", ordinal)

    def begin(self, save: SaveRow) -> None:
        """Write a save before its first step, because steps change the table and must not be repeated."""
        self._file.insert("saves", {**vars(save), "steps": json.dumps(save.steps)})

    def update(self, ordinal: int, **columns: Any) -> None:
        self._file.update("saves", columns, "pass = ?", ordinal)

    def add_version(self, **columns: Any) -> None:
        self._file.insert("versions", columns)

    def abandon_versions(self, after: int) -> None:
        """Mark later versions as abandoned: they can be served, but no delta depends on them."""
        self._file.update("versions", {"state": "abandoned"}, "id > ? and state = 'published'", after)

    def versions(self, first: int = 0) -> list[dict[str, Any]]:
        """Return the versions of the passes from `first` on, and the last published one if it is older."""
        published = "(select max(id) from versions where state = 'published')"
        return self._file.dicts(f"select * from versions where pass >= ? or id = {published} order by id", first)

    def refused_versions(self) -> int:
        return int(self._file.one("select count(*) from versions where state = 'refused'")[0])

    def version_passes(self) -> dict[int, int]:
        """Return the pass of each version in the ledger, by version id."""
        return dict(self._file.all("select id, pass from versions"))

    def chain(self) -> list[int]:
        """Return the published versions that the next delta depends on, its base first; [] without a base."""
        parents = dict(self._file.all("select id, parent from versions"))
        last = self._file.facts.follows
        chain: list[int] = []
        while last is not None:
            chain.append(last)
            last = parents.get(last)
        return chain[::-1]

    def add_checkpoint(
        self,
        name: str,
        ordinal: int,
        follows: int | None,
        base: int | None,
        at: float,
        *,
        mid: Columns | None = None,
        stands_on: str = "",
    ) -> None:
        """Add a checkpoint. `mid`: the columns (state, epoch, trained_at) with which its pass continues; tasks are recorded, too.
        `stands_on`: the saved checkpoint that a checkpoint by log needs; its own name if it was compacted.
        """
        with self._file:
            self._file.db.execute("delete from logs where checkpoint = ?", (name,))
            if stands_on:
                self._file.insert("logs", {"checkpoint": name, "stands_on": stands_on})
            row = {"name": name, "ordinal": ordinal, "follows": follows, "base": base, "at": at}
            self._file.insert("checkpoints", {**row, "mid": None if mid is None else json.dumps(dict(mid))})
            self._file.db.execute("delete from kept where checkpoint = ?", (name,))
            if mid is not None:
                self._file.db.execute(
                    f"insert into kept (checkpoint, task, {KEPT}) select ?, id, {KEPT} from tasks where pass = ?",
                    (name, ordinal),
                )

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return the checkpoints for recoveries, oldest first. `mid` is None for a whole pass; `stands_on` is "" unless it is by log. With
        `compacted` its dense values are in the network of its version.
        """
        found = self._file.dicts(
            "select checkpoints.*, coalesce(stands_on, '') as stands_on from checkpoints left join logs on checkpoint = name"
            " where damaged is null order by pass, at"
        )
        for row in found:
            row["mid"] = row["mid"] and json.loads(row["mid"])
            row["compacted"] = row["stands_on"] == row["name"]
            row["stands_on"] = "" if row["compacted"] else row["stands_on"]
        return found

    def damaged_checkpoints(self) -> list[dict[str, Any]]:
        """Return the checkpoints that were set aside, oldest first."""
        return self._file.dicts("select * from checkpoints where damaged is not null order by pass, at")

    def set_aside(self, name: str, reason: str) -> None:
        """Mark a checkpoint as damaged, so that no recovery returns to it."""
        self._file.update("checkpoints", {"damaged": reason}, "name = ?", name)

    def remove_checkpoint(self, name: str) -> None:
        with self._file:
            self._file.db.execute("delete from checkpoints where name = ?", (name,))
            self._file.db.execute("delete from kept where checkpoint = ?", (name,))
            self._file.db.execute("delete from logs where checkpoint = ?", (name,))

    def set_table(self, ordinal: int, parts: Tables) -> None:
        """Set the parts of a pass. If it is saved again because only its version was lost, the first counts stay."""
        if parts:
            document = TABLES.dump_json(parts).decode()
            self._file.insert("table_rows", {"ordinal": ordinal, "document": document}, "insert or ignore")

    def last_table(self) -> Tables:
        """Return the parts after the last counted save, or ()."""
        row = self._file.one("select document from table_rows order by pass desc limit 1")
        return () if row is None else TABLES.validate_json(row[0])

    def tables(self, first: int) -> dict[int, str]:
        """Return the JSON of `Tables` of the passes from `first` on, in one query. Passes that an earlier release saved have none."""
        return dict(self._file.all("select pass, document from table_rows where pass >= ?", first))

    def unpublished(self) -> int:
        """Return the number of records of the passes after the last one that made a version."""
        [records] = self._file.one(
            "select coalesce(sum(records), 0) from tasks"
            " where pass > (select coalesce(max(pass), 0) from versions where state = 'published')"
        )
        return int(records)
