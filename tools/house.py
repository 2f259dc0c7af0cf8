"""Counts how readable the repository is, and fails where a counter is above its bound. `make house`, or tools/house.py [ROOT].

A bound only ever goes down: a change that lowers a counter lowers its bound.

- product: python/elastic_ctr without code that protoc generated (`*_pb2*`). Lengths of functions are from `def` to their end, and
  their arguments do not count self and cls.
- names used twice: names of modules (`__init__.py` apart) or of classes of the product that stand in several places.
- sentences: of comments and docstrings of the product. Comment lines that follow one another are one text. A text is cut after
  `.`, `!` or `?` with a blank behind, and at empty lines. Directives for linters are no sentences.
- fragments: sentences that begin with What, Who, Whoever, Whose, Of, Whether or Those, and are no question.
- words for people: sentences in which something tells, says, asks or holds, or is called who or nobody.
- docs: README, CHANGELOG, CONTRIBUTING and docs/ but for its Chinese pages, without code blocks and the words of a table's frame.
- modules that a serving worker may run: `serving/worker_process.py`, and all that it imports, also within functions and through others;
  without code of protoc, and without imports for types alone.
- circles: pairs of rooms of the product (one level below elastic_ctr) that import each other. Back arrows: imports against the
  layers that pyproject.toml names.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
_FRAGMENT = re.compile(r"^(What|Who|Whoever|Whose|Of|Whether|Those)\b(?!.*\?$)")
_WORDS_FOR_PEOPLE = re.compile(
    r"\b(tells?|told|says?|said|asks?|asked|holds?|held|who|whoever|nobody|somebody)\b", re.IGNORECASE
)
_TEST_OF_WHOM = re.compile(r"test_(who|whose|whoever|what|whatever|nobody)_")
_DIRECTIVE = re.compile(r"(noqa|type:|ruff:|mypy:|fmt:|pragma|!)")


class Repository:
    """The texts that are counted, each read once."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def sources(self) -> dict[Path, str]:
        """The product's files."""
        files = sorted((self.root / "python" / "elastic_ctr").rglob("*.py"))
        return {each: each.read_text() for each in files if "_pb2" not in each.name}

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return [node for source in self.sources.values() for node in ast.walk(ast.parse(source))]

    @cached_property
    def functions(self) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
        return [each for each in self.nodes if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]

    @cached_property
    def said(self) -> list[str]:
        return [each for source in self.sources.values() for text in texts(source) for each in sentences(text)]

    @cached_property
    def written(self) -> list[str]:
        return [each for text in self._docs() for each in sentences(text)]

    def _docs(self) -> Iterator[str]:
        pages = [self.root / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")]
        english = (each for each in (self.root / "docs").rglob("*.md") if each.parent.name != "zh")
        for page in [*(each for each in pages if each.exists()), *english]:
            text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
            for line in re.split(r"\n(?=\s*(?:[-*#|]|\d+\.) ?)", text):
                for cell in line.strip().lstrip("-*# ").split(" | "):
                    yield cell.strip("| \n")

    def imports_of(self, package: str) -> int:
        """Modules of the product that import it."""
        found = re.compile(rf"^\s*(?:import|from) {package}\b", re.MULTILINE)
        return sum(bool(found.search(source)) for source in self.sources.values())

    def circles_and_back_arrows(self) -> int:
        """Of the packages' imports; and broken contracts of import-linter, which are printed."""
        edges = set()
        for file, source in self.sources.items():
            here = file.relative_to(self.root / "python" / "elastic_ctr").parts[0]
            found = re.findall(r"^\s*(?:from|import) elastic_ctr\.(\w+)", source, re.MULTILINE)
            edges |= {(here, each) for each in found if each != here}
        linter = Path(sys.executable).parent / "lint-imports"
        done = subprocess.run([str(linter)], cwd=self.root, capture_output=True, text=True, check=False)
        broken = re.search(r"(\d+) broken", done.stdout)
        if broken is None:
            raise RuntimeError(f"lint-imports prints no count of contracts: {done.stdout}{done.stderr}")
        if done.returncode:
            print(done.stdout)
        circles = {(left, right) for left, right in edges if left < right and (right, left) in edges}
        return len(circles) + int(broken[1])

    @cached_property
    def of_a_serving_worker(self) -> set[Path]:
        """The modules that a serving worker may run: its own, and those that they import, also within functions."""
        found, due = set[Path](), [self.root / "python" / "elastic_ctr" / "serving" / "worker_process.py"]
        while due:
            file = due.pop()
            if file in self.sources and file not in found:
                found.add(file)
                due += self._imported_by(ast.parse(self.sources[file]))
        return {each for each in found if each.name != "__init__.py"}

    def _imported_by(self, tree: ast.AST) -> Iterator[Path]:
        for node in ast.iter_child_nodes(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [each.name for each in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
            for name in names:
                place = self.root / "python" / name.replace(".", "/")
                yield from (place.with_suffix(".py"), place / "__init__.py")
            if not (isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")):
                yield from self._imported_by(node)

    def tests(self) -> list[str]:
        """Names of test functions."""
        files = (self.root / "tests").rglob("test_*.py")
        return [
            each for file in files for each in re.findall(r"^(?:async )?def (test_\w+)", file.read_text(), re.MULTILINE)
        ]


def sentences(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        flat = " ".join(line.strip() for line in paragraph.splitlines())
        for each in re.split(r"(?<=[.!?])\s+", flat):
            if re.search(r"[A-Za-z]{2}", each):
                yield each.strip()


def texts(source: str) -> Iterator[str]:
    """Each docstring, and each run of comment lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring
    run: list[str] = []
    last = -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text = token.string.lstrip("#").strip()
        if _DIRECTIVE.match(text):
            continue
        if token.start[0] != last + 1 and run:
            yield "\n".join(run)
            run = []
        run.append(text)
        last = token.start[0]
    if run:
        yield "\n".join(run)


def _lines(text: str) -> int:
    return text.count("\n")


def _twice(names: Iterable[str]) -> int:
    return sum(count > 1 for count in Counter(names).values())


def _arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    given = function.args
    return sum(each.arg not in ("self", "cls") for each in (*given.posonlyargs, *given.args, *given.kwonlyargs))


def _length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def _matching(pattern: re.Pattern[str], each: Iterable[str]) -> int:
    return sum(bool(pattern.search(text)) for text in each)


@dataclass(frozen=True)
class Figure:
    """What is counted, the most that is accepted, and why it is counted."""

    name: str
    most: int
    reason: str
    count: Callable[[Repository], int]


FIGURES = (
    Figure("product lines", 69_913, "one person must be able to know all of it",
           lambda found: sum(map(_lines, found.sources.values()))),
    Figure("files over 500 lines", 2, "a file has one subject",
           lambda found: sum(_lines(each) > 500 for each in found.sources.values())),
    Figure("functions over 60 lines", 11, "a function is read without scrolling",
           lambda found: sum(_length(each) > 60 for each in found.functions)),
    Figure("functions of more than 8 arguments", 7, "arguments that go together are one",
           lambda found: sum(_arguments(each) > 8 for each in found.functions)),
    Figure("module names used twice", 9, "a name leads to one file",
           lambda found: _twice(each.name for each in found.sources if each.name != "__init__.py")),
    Figure("class names used twice", 3, "a name means one thing",
           lambda found: _twice(each.name for each in found.nodes if isinstance(each, ast.ClassDef))),
    Figure("fragments in comments and docstrings", 1, "a sentence has its subject, and is understood by itself",
           lambda found: _matching(_FRAGMENT, found.said)),
    Figure("fragments in docs", 12, "a sentence has its subject, and is understood by itself",
           lambda found: _matching(_FRAGMENT, found.written)),
    Figure("words for people in comments and docstrings", 57, "a process sends, reports, requests and keeps",
           lambda found: _matching(_WORDS_FOR_PEOPLE, found.said)),
    Figure("words for people in docs", 113, "a process sends, reports, requests and keeps",
           lambda found: _matching(_WORDS_FOR_PEOPLE, found.written)),
    Figure("names of type Any", 1_693, "mypy checks nothing of them",
           lambda found: sum(isinstance(each, ast.Name) and each.id == "Any" for each in found.nodes)),
    Figure("dict[str, Any]", 151, "documents between roles are typed models",
           lambda found: sum(source.count("dict[str, Any]") for source in found.sources.values())),
    Figure("tests named who, what or nobody", 0, "a test is named as a sentence about a component",
           lambda found: _matching(_TEST_OF_WHOM, found.tests())),
    Figure("values.yaml lines", 717, "an operator reads all of it before the first install",
           lambda found: _lines((found.root / "charts" / "elastic-ctr" / "values.yaml").read_text())),
    Figure("modules that import Paddle", 14, "its traps are known in few places",
           lambda found: found.imports_of("paddle")),
    Figure("modules that a serving worker may run", 73, "the way of a request is read to its end",
           lambda found: len(found.of_a_serving_worker)),
    Figure("their lines", 13_925, "the way of a request is read to its end",
           lambda found: sum(_lines(found.sources[each]) for each in found.of_a_serving_worker)),
    Figure("circles and back arrows", 0, "a package is understood with those below it alone",
           Repository.circles_and_back_arrows),
)  # fmt: skip


def main() -> int:
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    if not (root / "python" / "elastic_ctr").is_dir():
        sys.exit(f"{root} has no python/elastic_ctr; give the root of a checkout")
    found = Repository(root)
    above = []
    for figure in FIGURES:
        count = figure.count(found)
        print(f"{figure.name:44} {count:>7,}  at most {figure.most:>7,}  {figure.reason}")
        if count > figure.most:
            above.append(f"{figure.name}: {count:,} is above {figure.most:,}, because {figure.reason}")
        elif count < figure.most:
            print(f"{'':44} {'':>7}  lower the bound to {count:,}")
    for sentence in above:
        print(sentence, file=sys.stderr)
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
