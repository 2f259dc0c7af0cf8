"""The table of listening sockets in docs/architecture.md, which tests compare with what processes have open."""

import re
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"


class Listening(NamedTuple):
    """A row: the default port, the block of values (`cubeTransfer`) and its key (`config.port`), and where it is open."""

    port: int
    block: str
    key: str
    on_one_machine: bool

    @property
    def component(self) -> str:
        """The component whose pod has it."""
        return re.sub(r"[A-Z]", lambda found: f"-{found[0].lower()}", self.block)


def listening_sockets() -> list[Listening]:
    section = PAGE.read_text().partition("### Listening sockets")[2].partition("\n### ")[0]
    rows = re.findall(r"^\| (\d+) \| `(\w+)\.([\w.]+)`(?: \+ 1)? \|[^|]*\|[^|]*\| (yes|no) \|", section, re.MULTILINE)
    lines = re.findall(r"^\| \d+ \|", section, re.MULTILINE)
    assert len(rows) == len(lines), "a row of the table names no setting"
    return [Listening(int(port), block, key, here == "yes") for port, block, key, here in rows]
