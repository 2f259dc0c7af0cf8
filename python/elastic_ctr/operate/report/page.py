"""The whole page."""

import base64
import hashlib

from elastic_ctr.operate.report.document import Report
from elastic_ctr.operate.report.html import Html, element, joined, text
from elastic_ctr.operate.report.pass_tables import passes, rows_of_table, stages
from elastic_ctr.operate.report.quality_plots import quality
from elastic_ctr.operate.report.style import style_sheet
from elastic_ctr.operate.report.summary import summary
from elastic_ctr.operate.report.version_tables import ledger, recoveries, versions


def page(report: Report) -> str:
    """Return the page. Equal reports give equal pages, without anything of the time or the machine."""
    training = report.training
    sections = {
        "Quality": quality(training),
        "Passes": passes(training),
        "Table": rows_of_table(training),
        "Versions": versions(report),
        "Ledger": ledger(training),
        "Recoveries": recoveries(training),
        "Seconds by stage": stages(report),
    }
    keys = {name: name.lower().replace(" ", "-") for name in sections}
    links = [element("a", name, href=f"#{key}") for name, key in keys.items()]
    found = [
        element("section", element("h2", name, id=f"{keys[name]}"), content, aria_labelledby=keys[name])
        for name, content in sections.items()
    ]
    body = element(
        "body",
        element("header", element("h1", "Report of a run"), element("p", report.source)),
        element("nav", *links, aria_label="Sections"),
        element("main", summary(report), *found),
    )
    return f'<!doctype html>\n<html lang="en">{_head(report.source)}{body}</html>\n'


def _head(source: str) -> Html:
    css = style_sheet()
    digest = base64.b64encode(hashlib.sha256(css.encode()).digest()).decode()
    # With this policy a browser runs and fetches nothing, whatever the texts contain. The empty icon saves a request for one.
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; form-action 'none'"
    return joined(
        [
            Html('<head><meta charset="utf-8">'),
            Html(f'<meta http-equiv="Content-Security-Policy" content="{text(policy)}">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html('<meta name="referrer" content="no-referrer"><link rel="icon" href="data:,">'),
            element("title", f"Report of {source}"),
            Html(f"<style>{css}</style></head>"),
        ]
    )
