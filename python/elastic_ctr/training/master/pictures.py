"""Plots of the quality of passes from the master's status: ROC and calibration of the last pass, AUC over all."""

from collections.abc import Mapping
from typing import Any

from elastic_ctr.runtime.line_plot import line_plot


def pictures_of(status: Mapping[str, Any]) -> dict[str, str]:
    """Return SVG documents by file name; {} before a pass with records is done."""
    if not status["curves"]:
        return {}
    last = status["curves"][-1]
    moments = {f"{moment} training": last[moment] for moment in ("before", "after") if last[moment] is not None}
    roc = {name: [(at / 100, rate) for at, rate in enumerate(each["roc"])] for name, each in moments.items()}
    deciles = {
        name: [(decile["predictedCtr"], decile["observedCtr"]) for decile in each["deciles"]]
        for name, each in moments.items()
    }
    done = [each for each in status["passes"] if each["state"] == "done"]
    aucs = {
        name: [(float(each["ordinal"]), each[key]) for each in done if each[key] is not None]
        for name, key in (("before training", "aucBefore"), ("after training", "auc"))
    }
    return {
        "roc.svg": line_plot(
            f"ROC of pass {last['pass']}", "false positive rate", "true positive rate", roc, diagonal=True
        ),
        "calibration.svg": line_plot(
            f"Calibration of pass {last['pass']} by deciles of the score",
            "predicted CTR", "observed CTR", deciles, diagonal=True,
        ),
        "auc.svg": line_plot(f"AUC until pass {last['pass']}", "pass", "AUC", aucs),
    }  # fmt: skip
