"""The glossary and the code use the same words."""

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GLOSSARY = ROOT / "docs" / "glossary.md"
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in GLOSSARY.read_text().splitlines()
    if line.startswith("| ") and not line.startswith("| word")
]
# Names of a private vocabulary that standard terms have replaced; none of them comes back.
REPLACED = [
    "BuilderSilent",
    "CompiledDoor",
    "CompiledHttpDoor",
    "DoorClosed",
    "Follower",
    "GrpcDoor",
    "HandedOver",
    "LentThread",
    "MemoryFile",
    "NotNow",
    "Obedience",
    "Patience",
    "Seen",
    "ServerSilent",
    "TrackingAway",
    "allow_open_files",
    "awake_us",
    "covered_without",
    "doomed_versions",
    "door_sockets",
    "draw_from",
    "http_door",
    "is_leftover",
    "look_at_cube",
    "look_at_serving",
    "lookup_patience_ms",
    "max_attempts",
    "max_losses",
    "may_owe",
    "next_round",
    "owing_shards",
    "patience_seconds",
    "reached_at",
    "refusing",
    "repeated_rounds",
    "run_until_told",
    "say_good_bye",
    "set_fact",
    "source_protocol",
    "termination_kept",
    "wait_awake",
]


@cache
def everything() -> str:
    """Code, chart and docs but for the glossary itself, in lower case; a name's words stand apart."""
    files = [
        *(ROOT / "python" / "elastic_ctr").rglob("*.py"),
        *(ROOT / "charts" / "elastic-ctr").rglob("*.yaml"),
        *(page for page in (ROOT / "docs").rglob("*.md") if page != GLOSSARY),
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


@pytest.mark.parametrize("word", [row[0] for row in ROWS])
def test_a_word_of_the_glossary_is_used(word: str) -> None:
    assert re.search(rf"\b{word.lower()}(s|es)?\b", everything())


def test_words_that_were_replaced_stay_out_of_the_code() -> None:
    code = "\n".join(file.read_text() for file in (ROOT / "python" / "elastic_ctr").rglob("*.py"))

    assert [name for name in REPLACED if re.search(rf"\b{name}\b", code)] == []
