"""What the documents say exists: commands, options, make targets, settings, files."""

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from elastic_ctr.config.networks import NETWORKS
from elastic_ctr.config.own_network import OwnNetwork
from elastic_ctr.config.section import Section
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.cli.main import build

ROOT = Path(__file__).parents[2]
PAGES = [
    *(
        ROOT / name
        for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "charts/elastic-ctr/README.md")
    ),
    *sorted((ROOT / "docs").rglob("*.md")),
]
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_BLOCKS = (
    "data|model|store|master|trainer|pserver|cube|cubeTransfer|intake|serving|fileServer|tracking|training|networkPolicy|metrics|"
    "priorityClasses|auth|dataVolume|serviceAccount|image|log"
)


def commands_of(page: Path) -> Iterator[str]:
    """Shell lines in fenced blocks, and inline code that is a command of ours."""
    text = page.read_text()
    for block in _FENCED.findall(text):
        for line in block.splitlines()[1:-1]:
            if line.startswith(("make ", ".venv/bin/elastic-ctr")):
                yield line.partition(" # ")[0].strip()
    for code in _INLINE.findall(_FENCED.sub("", text)):
        if code.startswith(("make ", "elastic-ctr ", ".venv/bin/elastic-ctr ")):
            yield code


COMMANDS = [(page, line) for page in PAGES for line in commands_of(page)]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):.*##", MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r"\$\((?:if \$\()?([A-Z_]+)\)", MAKEFILE))
TREE = typer.main.get_command(build())


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def name_of(page: object) -> str:
    return str(page.relative_to(ROOT)) if isinstance(page, Path) else str(page)


def wrong_with(line: str) -> str | None:
    """The first word of a command line that the program does not know."""
    words = shlex.split(line.replace("…", ""))
    if words[0] == "make":
        known = {*TARGETS, *(f"{name}=" for name in VARIABLES)}
        return next((word for word in words[1:] if re.sub("=.*", "=", word) not in known), None)
    command: Any = TREE
    for word in words[1:]:
        if hasattr(command, "commands") and not word.startswith("-"):
            if word not in command.commands:
                return word
            command = command.commands[word]
        elif word.startswith("-") and word not in ("-", "--help"):
            known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}
            if word.partition("=")[0] not in known:
                return word
    return None


@pytest.mark.parametrize(("page", "line"), COMMANDS, ids=name_of)
def test_every_command_in_the_documents_exists(page: Path, line: str) -> None:
    assert wrong_with(line) is None, f"{name_of(page)}: {line}"


def test_the_documents_have_commands_and_a_wrong_one_is_found() -> None:
    assert len(COMMANDS) > 20
    assert wrong_with("make tset") == "tset"
    assert wrong_with(".venv/bin/elastic-ctr local rnu") == "rnu"
    assert wrong_with("elastic-ctr cube seek 5 --addres x") == "--addres"


def settings(section: type[Section], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(key, description) of every setting and block."""
    for name, field in section.model_fields.items():
        key = f"{prefix}{field.alias or name}"
        below = field.annotation
        if isinstance(below, type) and issubclass(below, Section):
            yield key, (below.__doc__ or "").strip()
            yield from settings(below, f"{key}.")
        else:
            yield key, (field.description or "").strip()


SETTINGS = {
    **dict(settings(Values)),
    **{key: what for kind in (*NETWORKS.values(), OwnNetwork) for key, what in settings(kind, "model.network.")},
    # Which of them, told apart by it.
    "model.network.name": "The network.",
}


def keys(values: Any, prefix: str = "") -> Iterator[str]:
    """Every key of a values file."""
    if isinstance(values, dict):
        for name, below in values.items():
            yield f"{prefix}{name}"
            yield from keys(below, f"{prefix}{name}.")


OF_THE_CHART = set(keys(yaml.safe_load((ROOT / "charts" / "elastic-ctr" / "values.yaml").read_text())))


def test_every_setting_says_what_it_does() -> None:
    assert [key for key, what in SETTINGS.items() if not what] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_setting_in_the_documents_exists(page: Path) -> None:
    named = {code for code in _INLINE.findall(page.read_text()) if re.fullmatch(rf"({_BLOCKS})\.[A-Za-z][\w.]*", code)}
    package = ROOT / "python" / "elastic_ctr"
    modules = {
        code
        for code in named
        if any((package / f"{code.replace('.', '/')}{end}").exists() for end in (".py", "/__init__.py"))
    }

    assert named - modules - SETTINGS.keys() - OF_THE_CHART == set()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    links = [link.partition("#")[0] for link in _LINK.findall(_FENCED.sub("", page.read_text())) if "://" not in link]

    assert [link for link in links if link and not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_to_a_heading_finds_it(page: Path) -> None:
    links = [link.partition("#") for link in _LINK.findall(_FENCED.sub("", page.read_text())) if "://" not in link]
    targets = [(page.parent / path if path else page, anchor) for path, _, anchor in links if anchor]

    assert [
        f"{name_of(target.resolve())}#{anchor}" for target, anchor in targets if anchor not in anchors(target)
    ] == []


def test_the_index_of_decisions_names_each_page_once_in_the_order_of_their_numbers() -> None:
    decisions = ROOT / "docs/decisions"
    rows = re.findall(r"^\| \[(\d{4})\]\((.+)\) \|", (decisions / "README.md").read_text(), re.MULTILINE)

    assert [page for _, page in rows] == sorted(page.name for page in decisions.glob("[0-9]*.md"))
    assert [number for number, _ in rows] == [f"{number:04}" for number in range(1, len(rows) + 1)]


def test_the_changelog_begins_with_what_is_newest() -> None:
    heads = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert heads
    assert heads[0] == "Unreleased" or re.match(r"\d+\.\d+\.\d+", heads[0])


@pytest.mark.parametrize("name", ["operations", "recipes", "streams"])
def test_an_index_names_each_page_of_its_folder_once_by_its_title(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text()
    listed = {page: title for title, page in re.findall(rf"^- \[(.+?)\]\({name}/(.+?)\)", text, re.MULTILINE)}
    pages = {page.name: page.read_text().partition("\n")[0] for page in (ROOT / "docs" / name).glob("*.md")}

    assert text.count(f"]({name}/") == len(listed)
    assert {page: f"# {title}" for page, title in listed.items()} == pages


@pytest.mark.parametrize("folder", ["operations", "recipes", "streams"])
def test_a_page_of_a_task_begins_with_a_sentence_on_it(folder: str) -> None:
    firsts = {page.name: page.read_text().split("\n\n")[1] for page in (ROOT / "docs" / folder).glob("*.md")}

    assert [page for page, first in firsts.items() if not re.match(r"[A-Z`][^|]+[.:]$", first, re.DOTALL)] == []


def exists(name: str) -> bool:
    """Whether a dotted name is a module of the program, or something in one."""
    steps = name.split(".")
    for length in range(len(steps), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(steps[:length]))
        except ModuleNotFoundError:
            continue
        return all((found := getattr(found, step, None)) is not None for step in steps[length:])
    return False


NAMED = sorted({
    (page, name)
    for page in PAGES
    for name in re.findall(r"`(elastic_ctr(?:\.\w+)+)`", page.read_text())
})  # fmt: skip


def test_every_name_in_the_program_that_a_document_has_exists() -> None:
    assert len(NAMED) > 100
    assert [f"{name_of(page)}: {name}" for page, name in NAMED if not exists(name)] == []
    assert not exists("elastic_ctr.runtime.process_pool.ServerWatchdog.tick")
