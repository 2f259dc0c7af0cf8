"""Plots of the quality of passes from the master's status: ROC and calibration of the last pass, AUC over all."""

from elastic_ctr.runtime.line_plot import line_plot
from elastic_ctr.runtime.status.master_status import TrainingStatus


def pictures_of(status: TrainingStatus) -> dict[str, str]:
    """Return SVG documents by file name; {} before a pass with records is done."""
    if not status.curves:
        return {}
    last, done = status.curves[-1], status.done
    roc = {name: [(at / 100, rate) for at, rate in enumerate(each.roc)] for name, each in last.moments.items()}
    deciles = {
        name: [(decile.predicted_ctr, decile.observed_ctr) for decile in each.deciles]
        for name, each in last.moments.items()
    }
    aucs = {
        "before training": [(float(each.ordinal), each.auc_before) for each in done if each.auc_before is not None],
        "after training": [(float(each.ordinal), each.auc) for each in done if each.auc is not None],
    }
    return {
        "roc.svg": line_plot(
            f"ROC of pass {last.id}", "false positive rate", "true positive rate", roc, diagonal=True
        ),
        "calibration.svg": line_plot(
            f"Calibration of pass {last.id} by deciles of the score",
            "predicted CTR", "observed CTR", deciles, diagonal=True,
        ),
        "auc.svg": line_plot(f"AUC until pass {last.id}", "pass", "AUC", aucs),
    }  # fmt: skip
