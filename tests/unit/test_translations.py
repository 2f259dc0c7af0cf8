"""The Chinese pages have the commands and settings of the English sections that they translate, and show which of these have changed."""

import re
from pathlib import Path
from typing import Any

import pytest

from tools_modules import tool

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "zh").glob("*.md"))
_FENCED = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"`([^`]+)`")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
TRANSLATIONS = tool("translations")
# Of a section that is not current the page has a notice instead.
CURRENT = [
    (page.name, each)
    for page in PAGES
    for each in TRANSLATIONS.translated(page.read_text())
    if not TRANSLATIONS.stale(ROOT, each)
]


def settings_in(text: str) -> set[str]:
    """Inline code, which may go over the end of a line."""
    return {" ".join(code.split()) for code in _INLINE.findall(_COMMENT.sub("", _FENCED.sub("", text)))}


@pytest.mark.parametrize(("page", "section"), CURRENT, ids=lambda each: each if isinstance(each, str) else each.name)
def test_a_chinese_section_has_the_blocks_and_the_code_of_its_english_one(page: str, section: Any) -> None:
    english = TRANSLATIONS.english(ROOT, section.page, section.anchor)

    assert _FENCED.findall(section.text) == _FENCED.findall(english)
    assert settings_in(section.text) == settings_in(english)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_section_that_is_not_current_has_a_notice_and_what_is_not_translated_is_listed(page: Path) -> None:
    assert page.read_text() == TRANSLATIONS.with_notices(ROOT, page.read_text()), "run make generate"


ENGLISH = "# A page\n\nIts lead.\n\n## First\n\n```sh\n# no heading\n```\n\n## Second\n\nMore.\n"
CHINESE = (
    "# 页\n\n<!-- of docs/a.md 0 -->\n\n导言。\n\n## 一\n\n<!-- of docs/a.md#first 0 -->\n\n```sh\n# no heading\n```\n"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text(ENGLISH)
    return tmp_path


def test_a_reviewed_page_has_no_notice_until_the_english_words_change(root: Path) -> None:
    page = TRANSLATIONS.reviewed(root, CHINESE)
    assert "英文原文" not in page
    assert TRANSLATIONS.with_notices(root, page) == page

    (root / "docs" / "a.md").write_text(ENGLISH.replace("Its lead.", "Its\nlead."))
    assert TRANSLATIONS.with_notices(root, page) == page

    (root / "docs" / "a.md").write_text(ENGLISH.replace("no heading", "another command"))
    noticed = TRANSLATIONS.with_notices(root, page)
    assert noticed.count("> 英文原文在翻译之后有改动。请以[英文](../a.md#first)为准。") == 1
    assert [each.name for each in TRANSLATIONS.translated(noticed) if TRANSLATIONS.stale(root, each)] == [
        "docs/a.md#first"
    ]
    assert TRANSLATIONS.with_notices(root, noticed) == noticed
    assert "英文原文" not in TRANSLATIONS.reviewed(root, noticed)


def test_an_english_section_that_is_new_or_gone_is_shown(root: Path) -> None:
    page = TRANSLATIONS.reviewed(root, CHINESE)
    assert page.endswith("## 只有英文的部分\n\n- [Second](../a.md#second)\n")

    (root / "docs" / "a.md").write_text(ENGLISH.replace("## First", "## Begin"))
    changed = TRANSLATIONS.with_notices(root, page)
    assert "> 英文原文在翻译之后有改动。请以[英文](../a.md#first)为准。" in changed
    assert "- [Begin](../a.md#begin)\n" in changed
