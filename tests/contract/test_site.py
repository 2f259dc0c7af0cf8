"""`make docs`, and its site in a real browser: the search finds terms of both languages, and no request goes to another host.

tests/unit/test_site.py has the navigation, and tests/unit/test_docs.py the links.
"""

import functools
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from browser import Browser, browser

# The site is built with packages of its own, and few changes touch how: tests/unit/test_docs.py checks the links of each page.
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
# The search is an element with a shadow tree of its own.
FIELD = """
[...document.querySelectorAll('*')].map(e => e.shadowRoot && e.shadowRoot.querySelector('input')).find(e => e)
"""
FOUND = f"[...({FIELD}).getRootNode().querySelectorAll('a')].map(e => e.href)"
TERMS = {
    "参数服务器": "docs/zh/glossary/",
    "分片": "docs/zh/operations/",
    "稀疏表": "docs/zh/glossary/",
    "回滚": "docs/zh/operations/",
    "离群值": "docs/zh/features/",
    "缺失值": "docs/zh/features/",
    "扩缩容": "docs/zh/operations/",
    "磁盘满": "docs/zh/operations/",
    "实时流": "docs/zh/tutorial/",
    "容错": "docs/zh/",
    "standardized": "docs/features/",
    "model.partitions": "charts/elastic-ctr/",
    "hedge": "docs/glossary/",
    "roll back": "docs/operations/roll-back/",
    "NetworkPolicies": "docs/operations/install/",
    "gradientMerge": "docs/configuration/",
    "quarantine": "docs/operations/stopped-pass/",
    "publishing hold": "docs/streams/quality-guard/",
    "grpcurl": "docs/serving-protocols/",
    "busy poll": "docs/decisions/0009-busy-polling/",
}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: object) -> None:
        pass


def copied(folder: Path) -> Path:
    """What the site is built from, and the environment that a build of the checkout has made."""
    for name in ("docs", "examples", "charts", "requirements", "python/elastic_ctr/__init__.py", "tools/docs"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, folder / name)
    for page in (*ROOT.glob("*.md"), ROOT / "LICENSE", ROOT / "pyproject.toml", ROOT / "mkdocs.yml"):
        shutil.copy(page, folder)
    (folder / ".venv-docs").symlink_to(ROOT / ".venv-docs")
    return folder


def built(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["tools/docs"], cwd=folder, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of the site."""
    done = built(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    handler = functools.partial(Quiet, directory=str(ROOT / "build" / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        found.show(1280)
        yield found


def until(chromium: Browser, expression: str, seconds: float = 30) -> bool:
    """Whether the expression becomes true within that time."""
    ends = time.monotonic() + seconds
    while not (found := bool(chromium.evaluate(f"!!({expression})"))) and time.monotonic() < ends:
        time.sleep(0.1)
    return found


def search(chromium: Browser, site: str, words: str) -> None:
    """Types the words into the search of the first page."""
    chromium.open(site)
    assert until(chromium, "document.querySelector('.md-search__button')")
    # A button that is pressed before its script runs does nothing, and a field takes no words before it is shown.
    open_it = "document.querySelector('.md-search__button').click()"
    shown = f"(({FIELD})?.getClientRects().length)"
    assert until(chromium, f"{shown} ? (({FIELD}).focus(), ({FIELD}).matches(':focus')) : {open_it}")
    chromium.ask("Input.insertText", text=words)


@pytest.mark.parametrize(("words", "page"), TERMS.items())
def test_the_search_leads_from_a_term_to_its_page(chromium: Browser, site: str, words: str, page: str) -> None:
    search(chromium, site, words)

    assert until(chromium, f"{FOUND}.some(e => e.startsWith({json.dumps(site + page)}))"), chromium.evaluate(FOUND)
    assert all(each.startswith((site, "data:")) for each in chromium.requests())
    assert chromium.complaints() == []


def test_the_search_of_a_word_that_no_page_has_finds_nothing(chromium: Browser, site: str) -> None:
    search(chromium, site, "hedge")
    assert until(chromium, f"{FOUND}.length > 0")

    chromium.ask("Input.insertText", text="xyzzy")

    assert until(chromium, f"{FOUND}.length === 0")


def test_the_site_shows_the_version_of_the_package(chromium: Browser, site: str) -> None:
    version = (ROOT / "python/elastic_ctr/__init__.py").read_text().partition('__version__ = "')[2].partition('"')[0]

    chromium.open(site)

    assert chromium.evaluate("document.querySelector('.md-header').innerText").count(f"elastic-ctr {version}")


@pytest.mark.parametrize(
    ("link", "reason"), [("no-page.md", "page does not exist"), ("features.md#no-heading", "anchor does not exist")]
)
def test_a_broken_link_or_anchor_fails_the_build(site: str, tmp_path: Path, link: str, reason: str) -> None:
    folder = copied(tmp_path)
    with (folder / "docs" / "limits.md").open("a") as page:
        page.write(f"\nThis [link]({link}) is broken.\n")

    done = built(folder)

    assert done.returncode != 0
    assert reason in done.stdout + done.stderr
