"""The site of the documents has each page once, and nothing of another host."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
SETTINGS = (ROOT / "mkdocs.yml").read_text()
PAGES = re.findall(r"^\s+- (?:[^:\n]+: )?(\S+\.md)$", SETTINGS, re.MULTILINE)


def test_the_navigation_has_each_page_of_the_documents_once() -> None:
    pages = [*ROOT.glob("*.md"), ROOT / "charts" / "elastic-ctr" / "README.md"]
    wanted = [str(page.relative_to(ROOT)) for page in (*pages, *(ROOT / "docs").rglob("*.md"))]

    assert Counter(PAGES) == Counter(wanted), "write it into `nav` of mkdocs.yml, or remove it there"


def test_the_settings_of_the_site_name_no_other_host() -> None:
    assert "//" not in SETTINGS
    assert "font: false" in SETTINGS
