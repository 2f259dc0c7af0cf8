"""The glossary and the code use the same words."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in GLOSSARY.read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| word")
]


def everything() -> str:
    """Code, chart and docs but for the glossary itself and translations, in lower case; a name's words stand apart."""
    files = [
        *(ROOT / "python" / "elastic_ctr").rglob("*.py"),
        *(ROOT / "charts" / "elastic-ctr").rglob("*.yaml"),
        *(page for page in (ROOT / "docs").rglob("*.md") if page != GLOSSARY and page.parent.name != "zh"),
    ]
    text = "\n".join(file.read_text() for file in files)
    return re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", text).lower()


def test_each_word_is_explained_once_in_one_sentence() -> None:
    words = [word for word, *_ in ROWS]

    assert len(words) > 40
    assert len(set(words)) == len(words)
    for word, meaning, _elsewhere in ROWS:
        assert meaning.endswith("."), word
        assert not re.search(r"[.!?] [A-Z]", meaning), word


def test_the_words_of_the_glossary_are_used() -> None:
    text = everything()

    assert [word for word, *_ in ROWS if not re.search(rf"\b{word.lower()}(s|es)?\b", text)] == []
