import re
import time
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from elastic_ctr.operate.report.page import page
from elastic_ctr.operate.report.pass_tables import MOST_STAGES, batches, stage_names
from elastic_ctr.operate.report.version_tables import state_of
from elastic_ctr.runtime.status.master_status import VersionStatus
from elastic_ctr.runtime.status.transfer_status import ReleaseStatus
from operate.report.runs import HOSTILE, answers, report_of

MOST_BYTES = 1_500_000


def page_of(found: dict[str, Any], source: str = "/home/you/elastic-ctr-local") -> str:
    return page(report_of(source, found))


def body_of(text: str) -> ET.Element:
    """As XML, which forgives no tag that is left open and no character that is not escaped."""
    return ET.fromstring(text[text.index("<body>") : text.index("</html>")])


def rows_of(text: str, caption: str) -> list[list[str]]:
    for each in body_of(text).iter("table"):
        if each.findtext("caption") == caption:
            return [["".join(cell.itertext()) for cell in row] for row in each.iter("tr")]
    raise AssertionError(f"no table {caption}")


def test_a_pass_has_a_row_with_what_was_read_learned_and_foretold() -> None:
    head, stopped, last, *_ = rows_of(page_of(answers()), "Passes, newest first")

    assert dict(zip(head, last, strict=True)) == {
        "pass": "20200101/05", "state": "done", "records": "120,006", "refused": "12", "AUC before": "0.6226",
        "AUC after": "0.6726", "logloss before": "0.4100", "logloss after": "0.3700", "calibration before": "1.030",
        "calibration after": "1.030", "epochs": "2", "batch sizes": "128, 512", "held out": "12,000", "shift": "-0.0123",
        "version": "1795252006", "reason": "",
    }  # fmt: skip
    assert (stopped[:2], stopped[-1]) == (["20200101/06", "stopped"], "the reason")


def test_gauc_has_columns_where_a_pass_has_one() -> None:
    found = answers()
    found["master"]["passes"][-2]["quality"]["after"]["gauc"] = 0.6543

    head, _, last, *_ = rows_of(page_of(found), "Passes, newest first")

    row = dict(zip(head, last, strict=True))
    assert (row["GAUC before"], row["GAUC after"], row["calibration after"], row["epochs"]) == (
        "-",
        "0.6543",
        "1.030",
        "2",
    )


def test_the_rows_of_each_pserver_and_of_each_save_are_shown_and_a_figure_that_is_not_known_is_a_dash() -> None:
    found = answers(passes=2)
    first, second, stopped = found["master"]["passes"]
    stopped["table"] = None
    first["table"] = [
        {"rows": 1000, "new": None, "expired": 0, "bytes": 5000},
        {"rows": 9, "new": 9, "expired": 0, "bytes": 50},
    ]
    second["table"] = [
        {"rows": 900, "new": 20, "expired": 120, "bytes": 4600},
        {"rows": 9, "new": 1, "expired": 1, "bytes": 50},
    ]
    found["master"]["pservers"] = [{"index": 0, "memoryBytes": 200_000_000}, {"index": 1, "memoryBytes": None}]
    text = page_of(found)

    assert rows_of(text, "Pservers, after the save of 20200101/01") == [
        ["pserver", "rows", "new", "expired", "checkpoint bytes", "memory bytes"],
        ["0", "900", "20", "120", "4,600", "200,000,000"],
        ["1", "9", "1", "1", "50", "-"],
        ["all", "909", "21", "121", "4,650", "-"],
    ]
    assert rows_of(text, "Rows after each save, newest first") == [
        ["pass", "rows", "new", "expired", "checkpoint bytes"],
        ["20200101/01", "909", "21", "121", "4,650"],
        ["20200101/00", "1,009", "-", "0", "5,050"],
    ]


def test_versions_have_their_state_and_the_reason_of_a_refusal_by_whoever_refused_them() -> None:
    head, *rows = rows_of(page_of(answers()), "Versions, newest first")

    by_version = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert list(by_version) == [f"179525200{number}" for number in (6, 5, 4, 3, 2, 1)]
    states = [(each["state"], each["reason"]) for each in by_version.values()]
    assert states == [
        ("live", "-"), ("previous", "-"), ("published", "-"), ("refused", "the reason"), ("refused", "the reason"),
        ("published", "-"),
    ]  # fmt: skip
    assert (by_version["1795252006"]["parent"], by_version["1795252006"]["seconds to live"]) == ("1795252005", "7.4")


def test_a_live_version_that_is_refused_later_is_shown_as_refused() -> None:
    version = VersionStatus.model_validate({"id": 7, "kind": "base", "pass": 1, "state": "published"})

    assert state_of(version, ReleaseStatus(live=7, promotion_paused=False, refused={7: "sample 3 differs"})) == (
        "refused",
        "sample 3 differs",
    )
    assert state_of(version, ReleaseStatus(live=7, promotion_paused=False)) == ("live", "")


def test_each_line_is_in_one_row_of_the_ledger() -> None:
    _, *rows = rows_of(page_of(answers()), "Lines, each counted once")

    *parts, whole = [int(row[1].replace(",", "")) for row in rows]
    assert sum(parts) == whole == 6 * 120_012
    assert [row[2] for row in rows] == ["89.99%", "0.01%", "0.00%", "10.00%", "0.00%", "100.00%"]


def test_stages_have_a_bar_and_seconds_and_the_time_to_live() -> None:
    text = page_of(answers())

    head, _, last, *_ = rows_of(text, "Seconds of each pass")
    assert dict(zip(head[:3], last, strict=False)) == {"pass": "20200101/05", "train": "15.50", "denseExport": "0.48"}
    assert (head[-1], last[-1]) == ("published to live", "7.39")
    bars = [each for each in body_of(text).iter("svg") if each.get("class") == "bar"]
    assert len(bars) == 7
    assert (bars[1].get("aria-label") or "").startswith("train 15.5 s, denseExport 0.5 s")
    assert sum(int(each.get("width") or 0) for each in bars[1].iter("rect")) == pytest.approx(1000, abs=10)


def test_more_stages_than_colours_are_one_stage() -> None:
    found = answers()
    found["master"]["passes"][0]["seconds"] = {f"stage{number:02}": 1.0 for number in range(20)}
    names = stage_names(report_of("x", found).training.passes)

    assert len(names) == MOST_STAGES
    assert (names[0], names[-1]) == ("train", "other stages")
    assert rows_of(page_of(found), "Seconds of each pass")[-1][-2] != "-"


def test_equal_batches_in_a_row_are_counted() -> None:
    assert [batches(each) for each in ((), (512,), (16, 64, 512, 512, 512))] == ["-", "512", "16, 64, 3 x 512"]


def test_the_last_figures_and_what_stands_still_are_seen_first() -> None:
    section = next(body_of(page_of(answers())).iter("section"))

    tiles = {each.findtext("dt"): each.findtext("dd/b") for each in section.iter("div")}
    assert tiles == {
        "passes done": "6", "lines": "720,072", "AUC before training": "0.6226", "logloss before training": "0.4100",
        "calibration before": "1.0300", "live version": "1795252006", "recoveries": "2",
    }  # fmt: skip
    assert "Pass 20200101/06 is stopped: the reason" in "".join(section.itertext())


def test_a_stream_has_the_figures_of_its_newest_passes_and_the_freshness_of_its_clicks() -> None:
    found = answers()
    assert "clicks answered with after" not in page_of(found)
    found["master"]["window"] = {"passes": 54, "shows": 40_000, "clicks": 10_012, "auc": 0.79123, "calibration": 1.0124}
    found["serving"] = {"clickFreshness": {"p50": 1.24, "p90": 2.5, "p99": 3.96, "max": 6.0, "records": 1000}}

    text = page_of(found)

    assert "<dt>AUC of the last 54 passes</dt><dd><b>0.7912</b><span>calibration 1.0124, 10,012 clicks</span>" in text
    assert (
        "<dt>clicks answered with after</dt><dd><b>p50 1.2 s</b><span>p99 4.0 s, at most 6.0 s, of 1,000 clicks</span>"
        in text
    )


def test_equal_answers_make_equal_pages_at_any_time_and_place(monkeypatch: pytest.MonkeyPatch) -> None:
    first = page_of(answers())
    try:
        monkeypatch.setenv("TZ", "Asia/Shanghai")
        time.tzset()
        assert page_of(answers()) == first
    finally:
        monkeypatch.undo()
        time.tzset()


def test_hostile_text_is_text_and_every_name_and_reason_is_still_there() -> None:
    text = page_of(answers(say=HOSTILE, name=HOSTILE), HOSTILE)

    root = body_of(text)
    assert "script" not in {each.tag for each in root.iter()} | set(re.findall(r"<(\w+)", text.partition("<body>")[0]))
    assert {name for each in root.iter() for name in each.attrib if name.startswith("on")} == set()
    shown = HOSTILE.replace("\u202e", "\\u202e").replace("\x00", "\\x00").replace("\ud800", "\\ud800")
    said = "".join(root.itertext())
    assert f"Pass 20200101/06{shown} is stopped: {shown}" in said
    assert said.count(shown) > 20
    assert text.encode().decode() == text


def test_a_thousand_passes_are_a_page_of_bounded_size() -> None:
    longest = page_of(answers(999, say="x" * 100_000))

    assert len(longest.encode()) < MOST_BYTES
    root = body_of(longest)
    for each in root.iter("path"):
        assert len(re.findall("[ML]", each.get("d") or "")) <= 200
    assert len([each for each in root.iter("svg") if each.get("class") == "bar"]) == 24
    assert (
        sum(len(rows_of(longest, name)) - 1 for name in ("Passes, newest first", "Passes, newest first: 950 more"))
        == 1000
    )


def test_however_much_went_wrong_the_page_is_bounded() -> None:
    found = answers(999, say='"' * 100_000)
    found["master"]["versions"] = [
        {**each, "state": "refused", "reason": '"' * 100_000} for each in found["master"]["versions"]
    ]
    found["master"]["recoveries"] *= 3000
    found["transfer"]["problems"] *= 500

    text = page_of(found)

    assert len(text.encode()) < 16_000_000
    assert "5,000 older ones are left out." in text
    assert "481 more problems" in text


def test_the_page_names_no_other_place_and_allows_none() -> None:
    text = page_of(answers())

    assert re.findall(r"(?:https?:)?//[^\s\"]+", text) == []
    assert set(re.findall(r'(?:href|src)="([^#"][^"]*)"', text)) == {"data:,"}
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert policy[1].startswith("default-src &#x27;none&#x27;; style-src &#x27;sha256-")
    assert "unsafe" not in policy[1]
    assert "style=" not in text


def test_pictures_and_tables_have_names_and_sections_are_led_to() -> None:
    root = body_of(page_of(answers()))

    ids = [each.get("id") for each in root.iter() if each.get("id")]
    assert len(ids) == len(set(ids))
    for each in root.iter("svg"):
        assert each.get("role") == "img"
        assert each.get("aria-label") or set((each.get("aria-labelledby") or "?").split()) <= set(ids)
    assert all(each.findtext("caption") for each in root.iter("table"))
    assert all(each.find("details") is not None for each in root.iter("figure"))
    assert {(each.get("href") or "")[1:] for each in root.iter("a")} <= set(ids)
    assert [each.tag for each in root.iter() if each.tag in ("h1", "h2")] == ["h1", *["h2"] * 7]


def test_a_run_that_has_just_begun_has_a_page() -> None:
    nothing: dict[str, Any] = {"master": {"passes": [], "ledger": {}, "pservers": [], "recoveries": []}}

    said = "".join(body_of(page_of(nothing)).itertext())

    assert "No pass is done yet." in said
    assert "cube-transfer did not answer" in said
    assert "Recoveries: none." in said


def test_a_master_of_an_earlier_release_has_a_page_without_what_it_does_not_say() -> None:
    found = answers()
    for each in found["master"]["passes"]:
        del each["learning"], each["quality"], each["table"]
    del found["master"]["offset"], found["master"]["curves"]

    head, _, last, *_ = rows_of(page_of(found), "Passes, newest first")

    row = dict(zip(head, last, strict=True))
    assert (row["AUC after"], row["logloss after"], row["batch sizes"], row["shift"]) == ("0.6726", "-", "-", "-")
    assert "No save has counted the rows of the table yet." in page_of(found)


def test_a_single_pass_without_records_or_curves_has_a_page() -> None:
    found = answers(1)
    found["master"]["passes"][0] |= {
        "records": 0,
        "aucBefore": None,
        "auc": None,
        "quality": {"before": None, "after": None},
    }
    found["master"]["curves"] = []

    assert "nothing to draw" in page_of(found)


def test_passes_that_the_status_leaves_out_are_counted_and_named() -> None:
    given = answers(passes=6)
    given["master"]["earlierPasses"] = 9_000

    shown = page(report_of("x", given))

    assert "<b>9,006</b>" in shown
    assert "of 9,007 found, the first 9,000 of them not on this page" in shown
