"""The counters of `make house`, over a small tree of which each figure is known."""

from pathlib import Path
from types import ModuleType

import pytest

from tools_modules import tool


@pytest.fixture(scope="module")
def house() -> ModuleType:
    return tool("house")


ONE = '''"""Whether it is there. A role reads it."""
from typing import Any
import paddle


class Same:
    # Of the first. Not told twice.
    def long(self, a, b, c, d, e, f, g, h, i) -> dict[str, Any]:
        return {}
'''
OTHER = "class Same:\n" + "    def long(self):\n" + "        self\n" * 500

WORKER = """from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic_ctr.other.same import Same


def run() -> None:
    import elastic_ctr.one.same
"""


@pytest.fixture
def figures(house: ModuleType, tmp_path: Path) -> dict[str, int]:
    for package, text in (("one", ONE), ("other", OTHER)):
        folder = tmp_path / "python" / "elastic_ctr" / package
        folder.mkdir(parents=True)
        (folder / "same.py").write_text(text)
        (folder / "same_pb2.py").write_text("x = 1\n")
    worker = tmp_path / "python" / "elastic_ctr" / "serving" / "worker_process.py"
    worker.parent.mkdir()
    worker.write_text(WORKER)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text("# Title\n\nWhat it is. The log says it.\n\n```\nOf code\n```\n")
    (tmp_path / "charts" / "elastic-ctr").mkdir(parents=True)
    (tmp_path / "charts" / "elastic-ctr" / "values.yaml").write_text("a: 1\n")
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(
        "def test_who_comes_last():\n    pass\n\ndef test_a_thing():\n    pass\n"
    )
    found = house.Repository(tmp_path)
    return {each.name: each.count(found) for each in house.FIGURES if "circles" not in each.name}


def test_each_figure_is_that_of_the_tree(figures: dict[str, int]) -> None:
    assert figures == {
        "product lines": 519,
        "files over 500 lines": 1,
        "functions over 60 lines": 1,
        "functions of more than 8 arguments": 1,
        "module names used twice": 1,
        "class names used twice": 1,
        "fragments in comments and docstrings": 2,
        "fragments in docs": 1,
        "words for people in comments and docstrings": 1,
        "words for people in docs": 1,
        "names of type Any": 1,
        "dict[str, Any]": 1,
        "tests named who, what or nobody": 1,
        "values.yaml lines": 1,
        "modules that import Paddle": 1,
        "modules that a serving worker may run": 2,
        "their lines": 17,
    }


def test_a_question_is_no_fragment(house: ModuleType) -> None:
    assert [bool(house._FRAGMENT.search(each)) for each in ("Who is it?", "Who it is.", "Offsets are kept.")] == [
        False,
        True,
        False,
    ]
