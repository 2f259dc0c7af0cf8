"""A nightly test names what every run has in its place, as CONTRIBUTING.md demands."""

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MARK = re.compile(r"\bmark\.nightly\b")
MARKED = [file for file in sorted(TESTS.rglob("*.py")) if MARK.search(file.read_text()) and file != Path(__file__)]


def beside(lines: list[str], mark: int) -> str:
    """The comment above the mark, or else the docstrings that speak of nightly tests."""
    first = mark
    while lines[first - 1].startswith(("#", "@", "pytestmark = [")):
        first -= 1
    comment = [line for line in lines[first:mark] if line.startswith("#")]
    docstrings = re.findall(r'"""(.*?)"""', "\n".join(lines), re.DOTALL)
    return "\n".join(comment or [each for each in docstrings if "nightly" in each or "make test" in each])


def test_there_are_nightly_tests_of_all_kinds() -> None:
    assert {file.relative_to(TESTS).parts[0] for file in MARKED} >= {"cluster", "contract", "pipeline"}


@pytest.mark.parametrize("file", MARKED, ids=lambda file: str(file.relative_to(TESTS)))
def test_a_comment_beside_each_nightly_mark_names_tests_that_are_there(file: Path) -> None:
    lines = file.read_text().splitlines()
    for number, line in enumerate(lines):
        if not MARK.search(line):
            continue
        comment = beside(lines, number)
        named = re.findall(r"(?:tests/)?(?:\w+/)*test_\w+\.py|tests/unit", comment)

        assert named or "next test" in comment, f"{file}:{number + 1}: {comment or 'no comment'}"
        assert [each for each in named if not ((TESTS.parent / each).exists() or (file.parent / each).exists())] == []
