"""Plots of the quality: AUC and logloss over the passes, ROC and calibration of the last one."""

from collections.abc import Callable, Sequence
from itertools import zip_longest

from elastic_ctr.operate.report.html import Html, element, table
from elastic_ctr.operate.report.plot import Line, figure, plot, sampled, side_by_side
from elastic_ctr.operate.text_table import TextTable, columns, number
from elastic_ctr.runtime.status.master_status import CurvesOfPass, PassStatus, TrainingStatus

_MOMENTS = ("before training", "after training")
# The most rows of the table below a plot.
_ROWS = 200


def quality(training: TrainingStatus) -> Html:
    passes = [each for each in training.done if each.records]
    if not passes:
        return element("p", "No pass with records is done yet, so there is nothing to draw.", class_="none")
    shown = [
        _over_passes("auc", "AUC", passes, lambda each, at: each.auc_before if at == 0 else each.auc),
        _over_passes("logloss", "logloss", passes, lambda each, at: each.quality.moments[at].logloss),
    ]
    if training.curves:
        shown += [_roc(training.curves[-1]), _calibration(training.curves[-1])]
    return side_by_side(*shown)


def _over_passes(
    key: str, name: str, passes: Sequence[PassStatus], value: Callable[[PassStatus, int], float | None]
) -> Html:
    lines = []
    for place, moment in enumerate(_MOMENTS):
        known = [(at, each.id, found) for at, each in enumerate(passes) if (found := value(each, place)) is not None]
        lines.append(Line(moment, [(float(at), found) for at, _, found in known], [id_ for _, id_, _ in known]))
    title = f"{name} over the passes"
    ends = [(0.0, passes[0].id[-16:])]
    if len(passes) > 1:
        ends.append((float(len(passes) - 1), passes[-1].id[-16:]))
    at = sampled([(float(place), value(each, 0) or 0.0) for place, each in enumerate(passes)], _ROWS)
    rows = [(passes[place].id, *(number(value(passes[place], each)) for each in (0, 1))) for place in reversed(at)]
    caption = title if len(at) == len(passes) else f"{title}: {len(at)} of {len(passes):,}"
    picture = plot(f"plot-{key}", title, "pass", name, lines, ticks=ends)
    return figure(title, picture, table(caption, TextTable(columns("pass", *_MOMENTS), rows)))


def _roc(curves: CurvesOfPass) -> Html:
    title = f"ROC of pass {curves.id}"
    both = curves.moments
    lines = [Line(moment, [(at / 100, rate) for at, rate in enumerate(each.roc)]) for moment, each in both.items()]
    picture = plot("plot-roc", title, "false positive rate", "true positive rate", lines, diagonal=True)
    rates = zip_longest(*(each.roc for each in both.values()))
    rows = [(f"{at / 100:.2f}", *map(number, found)) for at, found in enumerate(rates) if at % 5 == 0]
    return figure(title, picture, table(title, TextTable(columns("false positive rate", *both), rows)))


def _calibration(curves: CurvesOfPass) -> Html:
    title = f"Calibration of pass {curves.id} by deciles of the score"
    both = curves.moments
    lines = [
        Line(
            moment,
            [(decile.predicted_ctr, decile.observed_ctr) for decile in each.deciles],
            [f"decile {place}" for place in range(1, len(each.deciles) + 1)],
        )
        for moment, each in both.items()
    ]
    picture = plot("plot-calibration", title, "predicted CTR", "observed CTR", lines, diagonal=True)
    heads = [f"{what} {moment.partition(' ')[0]}" for moment in both for what in ("predicted", "observed")]
    deciles = zip_longest(*(each.deciles for each in both.values()))
    rows = [
        (
            f"decile {place}",
            *(
                number(found)
                for decile in both_of
                for found in ((decile.predicted_ctr, decile.observed_ctr) if decile else (None, None))
            ),
        )
        for place, both_of in enumerate(deciles, 1)
    ]
    return figure(title, picture, table(title, TextTable(columns("decile", *heads), rows)))
