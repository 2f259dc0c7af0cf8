"""Prints the counters that say how readable the repository is, beside their bounds. `make house`, or tools/house.py [ROOT].

What is counted:

- product: python/elastic_ctr without code that protoc generated (`*_pb2*`).
- module names used twice or more: distinct file names of the product, `__init__.py` apart, that stand in several packages.
- sentences: of comments and docstrings of the product. Comment lines that follow one another are one text. A text is cut after
  `.`, `!` or `?` with a blank behind, and at empty lines. Directives for linters are no sentences.
- sentences that begin with a clause: the first word is What, Who, Whoever or Whose (`What was …`, `Who is …`), and it is no
  question. At commit d9e0b53 there were 248: 218 with What, 30 with the others.
- process words: sentences that call a process who, whoever, nobody or somebody.
- the same two in docs: README, CHANGELOG, CONTRIBUTING and docs/, without code blocks and without the words of a table's frame.
- functions: every def of the product. Its arguments do not count self and cls; its lines are those from `def` to its end.
- circles: pairs of packages of the product (one level below elastic_ctr) that import each other.
- back arrows: imports against the layers that pyproject.toml names.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]

# The most that is accepted; None: only shown.
BOUNDS: dict[str, int | None] = {
    "module names used twice or more": 5,
    "sentences of comments and docstrings": None,
    "… that begin with What or Who": 10,
    "… with who, whoever, nobody, somebody": None,
    "sentences of docs": None,
    "… of docs that begin with What or Who": 10,
    "… of docs with who, whoever, nobody, somebody": None,
    "product lines": 42_000,
    "… with generated ones": None,
    "product modules": None,
    "functions of more than 8 arguments": 8,
    "functions over 60 lines": None,
    "files over 400 lines": None,
    "values.yaml lines": 700,
    "circles and back arrows": 0,
}
_CLAUSE = re.compile(r"(What|Who|Whoever|Whose)\b(?!.*\?$)")
_PROCESS_WORD = re.compile(r"\b(who|whoever|nobody|somebody)\b", re.IGNORECASE)
_DIRECTIVE = re.compile(r"(noqa|type:|ruff:|mypy:|fmt:|pragma|!)")


def product(root: Path) -> list[Path]:
    return sorted(each for each in (root / "python" / "elastic_ctr").rglob("*.py") if "_pb2" not in each.name)


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


def docs(root: Path) -> Iterator[str]:
    for page in [
        *(root / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING")),
        *(root / "docs").rglob("*.md"),
    ]:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for line in re.split(r"\n(?=\s*(?:[-*#|]|\d+\.) ?)", text):
            for cell in line.strip().lstrip("-*# ").split(" | "):
                yield cell.strip("| \n")


def functions(trees: list[ast.Module]) -> Iterator[tuple[int, int]]:
    """Arguments and lines of each."""
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                args = node.args
                named = [*args.posonlyargs, *args.args, *args.kwonlyargs]
                count = sum(each.arg not in ("self", "cls") for each in named)
                yield count, (node.end_lineno or node.lineno) - node.lineno + 1


def circles_and_back_arrows(root: Path) -> int:
    """Of the packages' imports; and broken contracts of import-linter."""
    edges = set()
    for file in product(root):
        here = file.relative_to(root / "python" / "elastic_ctr").parts[0]
        found = re.findall(r"^\s*(?:from|import) elastic_ctr\.(\w+)", file.read_text(), re.MULTILINE)
        edges |= {(here, each) for each in found if each != here}
    linter = Path(sys.executable).parent / "lint-imports"
    done = subprocess.run([str(linter)], cwd=root, capture_output=True, text=True, check=False)
    broken = re.search(r"(\d+) broken", done.stdout)
    if broken is None:
        raise RuntimeError(f"lint-imports says no count of contracts: {done.stdout}{done.stderr}")
    circles = {(left, right) for left, right in edges if left < right and (right, left) in edges}
    return len(circles) + int(broken[1])


def counters(root: Path) -> dict[str, int]:
    package = root / "python" / "elastic_ctr"
    files = product(root)
    sources = [each.read_text() for each in files]
    names = Counter(each.name for each in files if each.name != "__init__.py")
    said = [each for source in sources for text in texts(source) for each in sentences(text)]
    written = [each for text in docs(root) for each in sentences(text)]
    defined = list(functions([ast.parse(source) for source in sources]))
    return {
        "module names used twice or more": sum(count > 1 for count in names.values()),
        "sentences of comments and docstrings": len(said),
        "… that begin with What or Who": sum(bool(_CLAUSE.match(each)) for each in said),
        "… with who, whoever, nobody, somebody": sum(bool(_PROCESS_WORD.search(each)) for each in said),
        "sentences of docs": len(written),
        "… of docs that begin with What or Who": sum(bool(_CLAUSE.match(each)) for each in written),
        "… of docs with who, whoever, nobody, somebody": sum(bool(_PROCESS_WORD.search(each)) for each in written),
        "product lines": sum(source.count("\n") for source in sources),
        "… with generated ones": sum(each.read_text().count("\n") for each in package.rglob("*.py")),
        "product modules": len(files),
        "functions of more than 8 arguments": sum(count > 8 for count, _ in defined),
        "functions over 60 lines": sum(lines > 60 for _, lines in defined),
        "files over 400 lines": sum(source.count("\n") > 400 for source in sources),
        "values.yaml lines": (root / "charts" / "elastic-ctr" / "values.yaml").read_text().count("\n"),
        "circles and back arrows": circles_and_back_arrows(root),
    }


def main() -> int:
    found = counters(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
    for name, bound in BOUNDS.items():
        said = "" if bound is None else f"at most {bound:,}{'' if found[name] <= bound else '  ABOVE'}"
        print(f"{name:48} {found[name]:>7,}  {said}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
