"""The page of `elastic-ctr report` in a real browser: it asks for nothing, everything is drawn, nothing overflows."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import Browser, browser
from elastic_ctr.operate.report.page import page
from needs import program
from operate.report.runs import HOSTILE, answers, report_of

WIDTHS = (390, 1280)
# What is wider than the window and does not stand in a part that scrolls.
OVERFLOWING = """
[...document.body.querySelectorAll('*')].filter(e => !e.closest('.scroll') || e.matches('.scroll')).filter(e => {
  const box = e.getBoundingClientRect();
  return box.width && (box.right > document.documentElement.clientWidth + 1 || box.left < -1);
}).map(e => e.outerHTML.slice(0, 80))
"""
# Of every element with text of its own, the contrast with the first background below it that is not transparent.
CONTRASTS = """
(() => {
  const parts = colour => colour.match(/[\\d.]+/g).map(Number);
  const light = colour => parts(colour).slice(0, 3).map(v => v / 255)
    .map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const behind = e => {
    for (; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (parts(colour)[3] !== 0) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const found = {};
  for (const e of document.body.querySelectorAll('*')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) || e.matches('title, desc')) continue;
    const style = getComputedStyle(e);
    const ink = e.namespaceURI.endsWith('svg') ? style.fill : style.color;
    const [low, high] = [light(ink), light(behind(e))].sort((a, b) => a - b);
    found[`${e.tagName}.${e.className.baseVal ?? e.className} ${ink}`] = (high + 0.05) / (low + 0.05);
  }
  return found;
})()
"""
DRAWN = """
[...document.querySelectorAll('svg')].map(svg => {
  const box = svg.getBoundingClientRect();
  const shapes = [...svg.querySelectorAll('path.line, circle, rect')];
  return [box.width > 100 && box.height > 10, shapes.length,
          shapes.every(e => { const own = e.getBBox(); return own.width + own.height > 0 })];
})
"""


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


def opened(chromium: Browser, folder: Path, found: dict[str, Any], source: str = "/home/you/elastic-ctr-local") -> Path:
    file = folder / "report.html"
    file.write_text(page(report_of(source, found)))
    chromium.open(file)
    return file


@pytest.mark.parametrize("found", [answers(), answers(999), answers(say=HOSTILE * 9, name=HOSTILE), answers(1)])
def test_no_request_leaves_the_page_and_nothing_overflows(
    chromium: Browser, tmp_path: Path, found: dict[str, Any]
) -> None:
    file = opened(chromium, tmp_path, found)

    for scheme in ("light", "dark"):
        for width in WIDTHS:
            chromium.show(width, scheme=scheme)
            chromium.evaluate("document.querySelectorAll('details').forEach(e => { e.open = true })")
            assert chromium.evaluate("document.documentElement.scrollWidth") <= width
            assert chromium.evaluate(OVERFLOWING) == []
    assert chromium.requests() == [file.as_uri()]
    assert chromium.complaints() == []


def test_a_page_that_asks_for_more_is_noticed_and_stopped_by_its_policy(chromium: Browser, tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    text = page(report_of("x", answers()))
    file.write_text(
        text.replace("<main>", '<main><img src="https://example.invalid/a.png"><script>document.title=1</script>')
    )

    chromium.open(file)

    assert len(chromium.complaints()) >= 2
    assert all("Content Security Policy" in each for each in chromium.complaints())
    assert chromium.evaluate("document.title") == "Report of x"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_picture_is_drawn(chromium: Browser, tmp_path: Path, scheme: str) -> None:
    opened(chromium, tmp_path, answers())
    chromium.show(1280, scheme=scheme)

    drawn = chromium.evaluate(DRAWN)

    assert len(drawn) == 4 + 7
    assert all(visible and shapes and whole for visible, shapes, whole in drawn)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_can_be_read_against_what_is_behind_it(chromium: Browser, tmp_path: Path, scheme: str) -> None:
    opened(chromium, tmp_path, answers())
    chromium.show(1280, scheme=scheme)

    contrasts = chromium.evaluate(CONTRASTS)

    assert len(contrasts) > 10
    # WCAG 2.2, level AA.
    assert {name: ratio for name, ratio in contrasts.items() if ratio < 4.5} == {}


def test_light_and_dark_are_what_the_reader_prefers_and_print_is_light(chromium: Browser, tmp_path: Path) -> None:
    opened(chromium, tmp_path, answers())
    shades = []
    for scheme, media in (("light", "screen"), ("dark", "screen"), ("dark", "print")):
        chromium.show(794, scheme=scheme, media=media)
        shades.append(chromium.evaluate("getComputedStyle(document.body).backgroundColor"))

    assert shades == ["rgb(255, 255, 255)", "rgb(20, 23, 26)", "rgb(255, 255, 255)"]
    assert chromium.evaluate(OVERFLOWING) == []
    assert chromium.evaluate("[...document.querySelectorAll('.scroll')].every(e => e.scrollWidth <= e.clientWidth + 1)")
    assert chromium.pdf().startswith(b"%PDF-")


def test_hostile_strings_are_shown_as_text(chromium: Browser, tmp_path: Path) -> None:
    opened(chromium, tmp_path, answers(say=HOSTILE, name=HOSTILE), HOSTILE)

    seen = chromium.evaluate("document.body.innerText")
    assert '</td><script>document.title="owned"</script><img src=x onerror=alert(1)>"\'&\\u202e\\x00\\ud800' in seen
    assert chromium.evaluate("document.querySelectorAll('script, main img').length") == 0
    assert "owned" in chromium.evaluate("document.title")
    assert chromium.evaluate("document.title").startswith("Report of </td>")
    assert chromium.complaints() == []


def test_a_keyboard_reaches_every_part_that_scrolls(chromium: Browser, tmp_path: Path) -> None:
    opened(chromium, tmp_path, answers())
    chromium.show(390)

    reached = set()
    for _ in range(60):
        for kind in ("keyDown", "keyUp"):
            chromium.ask("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
        reached.add(
            chromium.evaluate("document.activeElement.getAttribute('aria-label') || document.activeElement.tagName")
        )

    tables = set(chromium.evaluate("[...document.querySelectorAll('main > section > .scroll')].map(e => e.ariaLabel)"))
    assert tables
    assert tables <= reached
    assert {"A", "SUMMARY"} <= reached


def test_a_reader_of_the_screen_hears_pictures_by_their_titles(chromium: Browser, tmp_path: Path) -> None:
    opened(chromium, tmp_path, answers())

    nodes = chromium.ask("Accessibility.getFullAXTree")["nodes"]
    named = [
        each["name"]["value"]
        for each in nodes
        if each.get("role", {}).get("value") in ("image", "img", "graphics-document")
    ]

    assert any(each.startswith("AUC over the passes") for each in named), json.dumps(named)
    assert any(each.startswith("train 15.5 s") for each in named)


def test_the_command_of_the_manual_makes_a_picture(tmp_path: Path) -> None:
    manual = (Path(__file__).parents[2] / "docs" / "operations" / "report.md").read_text()
    [words] = (shlex.split(line) for line in re.findall(r"^chromium .+$", manual, re.MULTILINE))
    (tmp_path / "report.html").write_text(page(report_of("x", answers())))
    # Tests may run as root, whom Chromium's sandbox refuses.
    command = [program("chromium"), "--no-sandbox", f"--user-data-dir={tmp_path / 'profile'}", *words[1:]]

    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)

    assert (tmp_path / "report.png").read_bytes().startswith(b"\x89PNG")
