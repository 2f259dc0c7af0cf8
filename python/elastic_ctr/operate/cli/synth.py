"""`elastic-ctr synth`: click logs with a known truth."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import typer

from elastic_ctr.features.synthetic import PRESETS, NumbersTruth, SequenceTruth, Truth, parts, probability_text
from elastic_ctr.formats.hours import HOUR, TRUTH, VALUES, HoursRefused, HourTree, hour_name, parse_hour
from elastic_ctr.operate.cli.entrypoint import reason_of, refuse
from elastic_ctr.operate.cli.next_step import print_next
from elastic_ctr.operate.cli.shared_options import grouped
from elastic_ctr.training.model.evaluation import weighted_auc, weighted_logloss

PresetName = Literal["easy", "sparse", "pairwise", "third-order", "sequence", "numeric"]


@dataclass(frozen=True)
class Drawing:
    """Options that determine the lines."""

    seed: Annotated[int, typer.Option(min=0, help="Decides which lines are drawn.")] = 1
    truth_seed: Annotated[
        int | None,
        typer.Option(
            min=0, help="Decides the truth; the seed if not given. To hold lines out: the same truth, another seed."
        ),
    ] = None
    preset: Annotated[
        PresetName,
        typer.Option(
            help="easy has 1,000 keys in each of 8 slots, sparse 100,000, and both a weight for each key. In pairwise pairs of slots "
            "interact, in third-order groups of three. sequence has the last items that a user has seen in one slot, in order. "
            "numeric writes CSV with 13 numbers and 3 categories."
        ),
    ] = "easy"


def truth_of(preset: PresetName, seed: int) -> Truth | NumbersTruth:
    """Return the truth of a preset."""
    if preset == "numeric":
        return NumbersTruth(seed)
    return SequenceTruth(seed) if preset == "sequence" else Truth(PRESETS[preset], seed)


@grouped
def synth(
    out: Annotated[Path, typer.Argument(help="The folder to write; it must be empty or absent.")],
    hours: Annotated[int, typer.Option(min=1, help="Hours to write.")],
    rows: Annotated[int, typer.Option(min=1, help="Lines in all, spread evenly over the hours.")],
    drawing: Drawing,
    start: Annotated[str, typer.Option(metavar="YYYYMMDD/HH", help="The first hour.")] = "20200401/00",
    files_per_hour: Annotated[int, typer.Option(min=1, max=10_000, help="Files of each hour.")] = 2,
    force: Annotated[bool, typer.Option("--force", help="Replace the hours and slot.conf that are in OUT.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Write click logs made from a known truth, and the best AUC and logloss that any model can reach on them.

    Writes OUT/YYYYMMDD/HH/part-0000k with a donefile, OUT/values.yaml, OUT/slot.conf for lines of clicks, and the true probability of each line, in the
    order of the lines, to OUT/truth/YYYYMMDD/HH/part-0000k. The same options give the same bytes.
    """
    truth_seed = drawing.seed if drawing.truth_seed is None else drawing.truth_seed
    truth = truth_of(drawing.preset, truth_seed)
    probabilities, clicks = [], []
    try:
        first = parse_hour(start)
        with HourTree(out, force=force) as tree:
            for hour, file, share, dice in parts(rows, hours, files_per_hour, drawing.seed):
                lines = truth.draw(share, dice)
                name = f"{hour_name(first + HOUR * hour)}/part-{file:05d}"
                tree.append(name, truth.text(lines))
                tree.append(f"{TRUTH}/{name}", probability_text(lines.probabilities))
                probabilities.append(lines.probabilities)
                clicks.append(lines.clicks)
            last = first + HOUR * (hours - 1)
            tree.publish(truth.slots, first, last, truth.values(hour_name(first), hour_name(last)))
    except (HoursRefused, OSError) as error:
        refuse(reason_of(error), 1)
    scores, clicked = np.concatenate(probabilities), np.concatenate(clicks)
    summary = {
        "rows": rows,
        "clicks": int(clicked.sum()),
        "hours": hours,
        "slots": len(truth.slots or ()),
        "preset": drawing.preset,
        "seed": drawing.seed,
        "truthSeed": truth_seed,
        "auc": weighted_auc(scores, clicked, np.ones(rows)),
        "logloss": weighted_logloss(scores, clicked, np.ones(rows)),
        "loglossOfTheRate": weighted_logloss(np.full(rows, clicked.mean()), clicked, np.ones(rows)),
    }
    if as_json:
        typer.echo(json.dumps(summary))
        return
    auc = "none" if summary["auc"] is None else f"{summary['auc']:.5f}"
    typer.echo(
        f"{rows} lines with {summary['clicks']} clicks in {hours} hours of {out}\n"
        f"  the truth's AUC {auc}, logloss {summary['logloss']:.5f} "
        f"(of the click rate alone {summary['loglossOfTheRate']:.5f})"
    )
    held_back = ("--to", hour_name(last - HOUR)) if hours > 1 else ()
    why = "train all hours but the last, and answer predictions" if hours > 1 else "train it, and answer predictions"
    print_next("local", "up", "-f", out / VALUES, *held_back, why=why)
