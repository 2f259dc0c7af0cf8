"""`elastic-ctr tune`: a search for better values on existing hours, without a cluster."""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from elastic_ctr.config.data import Data
from elastic_ctr.config.feature_rules import input_of
from elastic_ctr.config.load import ConfigRefused
from elastic_ctr.config.networks import NETWORKS
from elastic_ctr.config.values_file import Values
from elastic_ctr.jobs.scoring.listing import Listing, NothingToRead, at_hours, complete_hours, with_span
from elastic_ctr.jobs.tune.converted_hours import HoursReader, SearchHoursRefused, divided
from elastic_ctr.jobs.tune.passes import Hours, SearchFailed
from elastic_ctr.jobs.tune.search_folder import OtherSearch, Scratch
from elastic_ctr.jobs.tune.space import DEFAULT_NETWORKS, KEYS, Candidate, Space, is_kept, usable_networks
from elastic_ctr.jobs.tune.trial import TrialSpec
from elastic_ctr.operate.cli.entrypoint import reason_of, refuse
from elastic_ctr.operate.cli.given_values import SetFile, ValuesFile, load_values
from elastic_ctr.operate.cli.next_step import print_next, values_options
from elastic_ctr.operate.cli.progress import progress_of
from elastic_ctr.operate.cli.shared_options import grouped
from elastic_ctr.operate.fitted_text import output_console
from elastic_ctr.runtime.lock import StateInUse, StateLock
from elastic_ctr.store.backends import StoreError, open_source
from elastic_ctr.store.backends.source import Source
from elastic_ctr.store.backends.temporary import appearing

if TYPE_CHECKING:
    from elastic_ctr.jobs.tune.search import Found

_STOPPED = 130
_DEFAULT_SCRATCH = Path("elastic-ctr-tune")
_RECORDS = 200_000
_TRIALS = 30


@dataclass(frozen=True)
class SearchOptions:
    """The options that define a search."""

    hours: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST..LAST",
            help="Hours to train with, such as 20200401/00..20200401/05, or one hour. All but those that validate if not given.",
        ),
    ] = None
    validate: Annotated[
        str | None,
        typer.Option(
            metavar="FIRST..LAST",
            help="Hours to validate with. The last fifth if not given; of a single hour a fifth of the records, by their features. Of a table, "
            "the rows behind commit FIRST up to LAST; those before are trained.",
        ),
    ] = None
    records: Annotated[
        int, typer.Option(min=100, help="Train and validate with about so many records at most, by their features.")
    ] = _RECORDS
    networks: Annotated[
        str | None, typer.Option(metavar="NAME,NAME", help="Networks to try.", show_default=",".join(DEFAULT_NETWORKS))
    ] = None
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="KEY", help="A value that stays, or all below it, such as model.embeddingDim."),
    ] = None
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of the choice of trials.")] = 1

    @property
    def kept(self) -> tuple[str, ...]:
        return tuple(self.keep or ())


@dataclass(frozen=True)
class TrialOptions:
    """The options that decide how many trials run, for how long, and where."""

    trials: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many trials, the present values included.",
            show_default=f"{_TRIALS}, or with --minutes as many as there is time for",
        ),
    ] = None
    minutes: Annotated[
        float | None,
        typer.Option(min=0, help="Begin no trial that would end later; the best ones are then trained once more."),
    ] = None
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Trials at the same time.", show_default="one for two cores")
    ] = None
    trial_minutes: Annotated[float, typer.Option(min=0.01, help="A trial that takes longer has failed.")] = 20
    scratch: Annotated[
        Path, typer.Option("--scratch", help="Where records and trials are kept until the search ends.")
    ] = _DEFAULT_SCRATCH
    keep_scratch: Annotated[
        bool, typer.Option("--keep-scratch", help="Keep them; the same command with more --trials then goes on.")
    ] = False

    @property
    def places(self) -> int:
        """The number of trials at the same time."""
        return self.jobs or max(1, len(os.sched_getaffinity(0)) // 2)

    @property
    def most(self) -> int | None:
        """The number of trials after which the search ends; None if only the time ends it."""
        return _TRIALS if self.trials is None and self.minutes is None else self.trials


@grouped
def tune(
    values: ValuesFile,
    set_file: SetFile = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the values to add there, to be given as the last -f.")
    ] = None,
    search: SearchOptions = SearchOptions(),
    trial: TrialOptions = TrialOptions(),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of the table.")] = False,
) -> None:
    """Search network, dimensions, learning rates, regularisation, batch size and epochs for better values on hours that are there.

    Each trial trains the hours as a training would, in a process beside one parameter server, and predicts the hours after them. The
    first trial has the present values. The best three are trained once more with another seed; the values that are written were better
    than the present ones in the mean of both. Interrupted, the same command goes on.

    Exit codes: 0 done, also where nothing was better; 1 the data cannot be read or the present values cannot be trained; 2 the values
    or options are wrong; 130 stopped by Ctrl-C, and what was found so far is written.
    """
    if find_spec("optuna") is None:
        refuse(
            "tune needs Optuna, which is not installed: install elastic-ctr's wheel with [tune], or tools/setup tune in a checkout"
        )
    _check_keys(search.kept)
    try:
        given = load_values(values, set_file)
        _check_set_files(set_file or (), search.kept)
        networks = _networks(given, search.networks)
        source = open_source(given.data.source)
        hours = _hours_of(source, given, search)
        with StateLock(trial.scratch):
            folder = Scratch(trial.scratch)
            folder.begin(_digest(given, search, networks, hours))
            read = folder.hours() or _read(given, source, hours, folder, search.records)
            found, base = _search(given, search, networks, trial, read, folder)
            _tell(base, found, read, as_json=as_json)
            if output is not None:
                _write(output, base, found, read, values, set_file)
            if found.interrupted:
                refuse(f"stopped; the same command goes on with {trial.scratch}", _STOPPED)
            if not trial.keep_scratch:
                folder.remove()
    except (ConfigRefused, StateInUse, OtherSearch, NothingToRead) as wrong:
        refuse(str(wrong))
    except (SearchHoursRefused, SearchFailed, StoreError, OSError, ValueError) as failed:
        refuse(reason_of(failed), 1)
    except KeyboardInterrupt:
        refuse("stopped before the first trial; nothing was written", _STOPPED)


def _check_keys(kept: Sequence[str]) -> None:
    for each in kept:
        if each != "model.network" and not any(key == each or key.startswith(f"{each}.") for key in KEYS):
            refuse(f"--keep {each} is no value that is searched, which are model.network, {', '.join(KEYS)}")


def _check_set_files(set_files: Sequence[str], kept: Sequence[str]) -> None:
    """Raises ConfigRefused for a --set-file that would override the written values."""
    for each in set_files:
        given = each.partition("=")[0]
        for key in ("model.network", *KEYS):
            if f"{given}.".startswith(f"{key}.") or key.startswith(f"{given}."):
                if is_kept(key, kept):
                    continue
                instead = (
                    "give model.network.file in the values file"
                    if key == "model.network"
                    else "give it in a values file"
                )
                raise ConfigRefused(
                    f"--set-file {given} wins over every values file, so another {key} could not be written to one; {instead}, or "
                    f"--keep {key}"
                )


def _networks(values: Values, told: str | None) -> tuple[str, ...]:
    """Raises ConfigRefused."""
    present = getattr(values.model.network, "name", "")
    names = [name.strip() for name in told.split(",")] if told is not None else [*DEFAULT_NETWORKS]
    if unknown := [name for name in names if name not in NETWORKS]:
        raise ConfigRefused(f"--networks: there is no network {unknown[0]!r}; the networks are {', '.join(NETWORKS)}")
    if told is None and present in NETWORKS and present not in names:
        names.append(present)
    usable, refused = usable_networks(_base(values), names)
    for sentence in refused:
        typer.echo(f"note: {sentence}", err=True)
    if not usable:
        raise ConfigRefused("--networks has no network that goes with the rest of the values")
    return usable


def _base(values: Values) -> Candidate:
    return Candidate(values.model, values.trainer.config)


class SearchHours(NamedTuple):
    """The hours to train and to validate with, and a listing that has their files."""

    listing: Listing
    trained: list[str]
    validated: list[str]

    @property
    def files(self) -> dict[str, int]:
        """Return the files of these hours with their bytes."""
        wanted, splits = {*self.trained, *self.validated}, self.listing.splits
        return {path: size for path, size in self.listing.files.items() if splits[path] in wanted}


def _hours_of(source: Source, values: Values, search: SearchOptions) -> SearchHours:
    """Raises ConfigRefused, NothingToRead, StoreError."""
    data = values.data
    if data.is_table:
        return _commits_of(source, data, search)
    listing = complete_hours(source, data, chosen=False) if search.hours is None or search.validate is None else None
    chosen: dict[str, list[str]] = {}
    for option, told in (("--hours", search.hours), ("--validate", search.validate)):
        if told is None:
            continue
        found = complete_hours(source, at_hours(data, told, option), chosen=True)
        if found.waiting:
            raise NothingToRead(f"{option} {told}: {found.waiting[0]} {data.why_incomplete}; wait, or leave it out")
        chosen[option] = list(found.hours)
        listing = found if listing is None else _joined(listing, found)
    assert listing is not None
    if "--validate" in chosen:
        validated = chosen["--validate"]
        trained = chosen.get("--hours", [hour for hour in listing.hours if hour < validated[0]])
    else:
        trained, validated = divided(listing.hours, chosen.get("--hours"))
    if both := sorted({*trained} & {*validated}):
        raise NothingToRead(f"{both[0]} would be trained and validate, too; give other --hours or --validate")
    if not trained:
        raise NothingToRead(f"there is no complete hour before {validated[0]} to train with; give --hours")
    return SearchHours(listing, trained, validated)


def _commits_of(source: Source, data: Data, search: SearchOptions) -> SearchHours:
    """As `_hours_of`, of a table, whose commits have an order that their names do not show."""
    if search.hours is not None:
        raise ConfigRefused(
            f"--hours {search.hours} is of folders of hours, and {data.source.url} is a table, whose rows from data.start on are trained; "
            "leave it out, and set data.start, or the commit that --validate begins behind"
        )
    if search.validate is None:
        listing = complete_hours(source, data, chosen=False)
        return SearchHours(listing, *divided(listing.hours))
    behind = search.validate.partition("..")[0]
    before = complete_hours(source, with_span(data, None, behind, f"--validate {search.validate}"), chosen=False)
    after = complete_hours(source, at_hours(data, search.validate, "--validate"), chosen=False)
    return SearchHours(_joined(before, after), [*before.hours], [*after.hours])


def _joined(one: Listing, other: Listing) -> Listing:
    hours = tuple(sorted({*one.hours, *other.hours}))
    return Listing(
        {**one.files, **other.files}, {**one.splits, **other.splits}, {**one.names, **other.names}, hours, one.waiting
    )


def _digest(values: Values, search: SearchOptions, networks: tuple[str, ...], hours: SearchHours) -> str:
    """Return the digest of all inputs that determine the results of trials and their comparison."""
    given = {
        "data": values.data.model_dump(mode="json", exclude={"end", "sleep_seconds"}),
        "features": None if values.features is None else values.features.model_dump_json(by_alias=True),
        "statistics": values.statistics,
        "model": values.model.model_dump(mode="json"),
        "trainer": values.trainer.config.model_dump(mode="json", exclude={"admin_port"}),
        "evaluate": values.master.config.evaluate,
        "search": [search.records, networks, search.kept, search.seed],
        "hours": [hours.trained, hours.validated],
        "files": sorted(hours.files.items()),
    }
    return hashlib.sha256(json.dumps(given, sort_keys=True).encode()).hexdigest()[:16]


def _read(values: Values, source: Source, hours: SearchHours, folder: Scratch, records: int) -> Hours:
    with progress_of(sum(hours.files.values()), "the first records are read") as report:
        reader = HoursReader(values, source, hours.listing, folder.data, report)
        return folder.keep_hours(reader.read(hours.trained, hours.validated, records))


def _search(
    values: Values, search: SearchOptions, networks: tuple[str, ...], trial: TrialOptions, hours: Hours, folder: Scratch
) -> "tuple[Found, Candidate]":
    deadline = None if trial.minutes is None else time.monotonic() + trial.minutes * 60
    # Optuna is imported here, after the check that it is installed.
    from elastic_ctr.jobs.tune.outcome import described
    from elastic_ctr.jobs.tune.pool import TrialPool
    from elastic_ctr.jobs.tune.search import Search
    from elastic_ctr.jobs.tune.study import Study

    base, data, given = _base(values), values.data, input_of(values.data, values.features)
    whole = hours.share >= 1
    stops = bool(data.holdout) and values.trainer.config.epochs == "auto"
    space = Space(base, networks, search.kept, max(each.records for each in hours.passes), whole, stops)
    template = TrialSpec(
        model=base.model, trainer=base.trainer, input=given,
        evaluates=values.master.config.evaluate, holds_out=data.holdout > 0, hours=str(folder.hours_file), folder="",
    )  # fmt: skip
    _say_what(hours, trial.places, starts_from=base.model.start_from is not None)
    study = Study(folder.journal, space, search.seed, by_epoch=len(hours.passes) == 1)
    if before := len(study.results()):
        _say(f"goes on after {before} trials that {folder.path} has")
    with TrialPool(template, folder.trials, trial.places, trial.trial_minutes * 60, keep=trial.keep_scratch) as pool:
        running = Search(
            study, pool, trial.most, deadline, trial.places, _say, lambda candidate: described(base, candidate)
        )
        return running.run(), base


def _say(sentence: str) -> None:
    typer.echo(sentence, err=True)


def _say_what(hours: Hours, places: int, *, starts_from: bool) -> None:
    _say(
        f"trains with {hours.records:,} records, {hours.trained}; validates with {hours.validation_records:,}, {hours.validated}; "
        f"{places} {'trial' if places == 1 else 'trials'} at a time"
    )
    if starts_from:
        _say(
            "note: model.startFrom keeps model.embeddingDim and the names of the rules in model.table as they are; trials begin from nothing, "
            "so their figures are not those of a model that begins with the other one's checkpoint"
        )
    if hours.share < 1:
        _say(
            f"note: these are {hours.share:.1%} of the records, chosen by their features; batch size and epochs of a pass depend on its size, "
            "so they stay as they are: give fewer --hours, or more --records, to search them, too"
        )


def _tell(base: Candidate, found: "Found", hours: Hours, *, as_json: bool) -> None:
    from elastic_ctr.jobs.tune.outcome import document, leaderboard, verdict

    if as_json:
        typer.echo(json.dumps(document(base, found, hours)))
    else:
        output_console().print(leaderboard(base, found))
    _say(verdict(found))


def _write(
    output: Path, base: Candidate, found: "Found", hours: Hours, files: list[Path], set_files: list[str] | None
) -> None:
    """Write the values to add, and check them by loading them after the others. Raises ConfigRefused, ValueError, OSError."""
    from elastic_ctr.jobs.tune.outcome import tuned_yaml

    winner = found.winner
    if winner is None:
        _say(f"{output} is not written")
        return
    with appearing(output) as out:
        out.write(tuned_yaml(base, found, hours).encode())
    read = _base(load_values([*files, output], set_files))
    wanted = winner.result.candidate
    if (read.model.model_dump(), read.trainer.model_dump()) != (wanted.model.model_dump(), wanted.trainer.model_dump()):
        raise ValueError(
            f"{output} is written, but the values files before it are not those of the search any more; put them back and call again"
        )
    _say(f"{output} is written; give it as the last -f")
    given = values_options([*files, output], set_files)
    print_next("local", "up", *given, "--dir", "elastic-ctr-tuned", why="another model needs a folder of its own")
