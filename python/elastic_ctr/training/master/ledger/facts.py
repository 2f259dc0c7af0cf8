"""The part of the ledger with single values."""

from typing import Any

from elastic_ctr.training.master.ledger.rows import Facts
from elastic_ctr.training.master.ledger.sqlite_file import LedgerFile


class LedgerFacts(LedgerFile):
    """Single values in one row, which is parsed again only after a change."""

    @property
    def facts(self) -> Facts:
        row = self._one("select value from facts")
        return Facts() if row is None else self._read_once(Facts, tuple(row), lambda: Facts.model_validate_json(row[0]))

    def set_facts(self, **values: Any) -> None:
        facts = Facts.model_validate({**dict(self.facts), **values})
        self._do("insert or replace into facts values (1, ?)", facts.model_dump_json())

    def increment(self, name: str, by: int = 1) -> int:
        value = int(getattr(self.facts, name)) + by
        self.set_facts(**{name: value})
        return value
