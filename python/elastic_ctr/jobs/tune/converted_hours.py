"""The hours of a search, divided into training and validation, and converted once for all trials.

Records are converted as by trainers, with the statistics that a training would pin: those of the values file, or of the first
pass.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from elastic_ctr.config.role_files import TrainingMember
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.config.values_file import Values
from elastic_ctr.features.statistics.collector import merged, part_name
from elastic_ctr.features.statistics.document import Statistics
from elastic_ctr.jobs.scoring.listing import Listing, at_hours
from elastic_ctr.jobs.tune.passes import ConvertedPiece, Hours, TrainedPass
from elastic_ctr.store.backends.source import Source
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.calendar.schedule import order_of_records, order_of_tasks, passes, ranges, tasks_of
from elastic_ctr.training.master.calendar.table_schedule import passes_of_commits
from elastic_ctr.training.master.ledger.rows import Pass
from elastic_ctr.training.trainer.conversions import conversion_of, feature_document, reader_of
from elastic_ctr.training.trainer.converted_files import hold_out, is_chosen
from elastic_ctr.training.trainer.converter import Conversion, convert_task

VALIDATION_SHARE = 0.2
# Seeds of the random choices for a record, by its content; data.holdout has seed 0.
_SAMPLE_SEED, _VALIDATION_SEED = 1, 2

Report = Callable[[int, str], None]
# A pass and its files with their bytes.
Group = tuple[Pass, dict[str, int]]


class SearchHoursRefused(ValueError):
    """The hours cannot be used for a search; the text is a sentence."""


def divided(hours: Sequence[str], trained: Sequence[str] | None = None) -> tuple[list[str], list[str]]:
    """Return the hours to train and the hours to validate with: the last fifth of all, or as many after the `trained` hours.

    With a single hour there is none to validate with, so a share of its records is used.
    """
    if trained is not None:
        after = [hour for hour in hours if hour > max(trained, default="")]
        if after:
            wanted = max(1, round(len(trained) * VALIDATION_SHARE / (1 - VALIDATION_SHARE)))
            return list(trained), after[:wanted]
        hours = trained
    if len(hours) < 2:
        return list(hours), []
    count = max(1, round(len(hours) * VALIDATION_SHARE))
    return list(hours[:-count]), list(hours[-count:])


class HoursReader:
    """Converts the hours of a listing into a folder."""

    def __init__(self, values: Values, source: Source, listing: Listing, folder: Path, report: Report) -> None:
        self._values = values
        self._source = source
        self._listing = listing
        self._folder = folder
        self._report = report
        self._refused: Counter[str] = Counter()
        self._read = 0
        self._share = 1.0
        self._files = 0

    def read(self, trained: Sequence[str], validated: Sequence[str], records: int) -> Hours:
        """Convert about `records` records of these hours, at most. Raises SearchHoursRefused, StoreError, OSError, ValueError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        groups = list(self._groups(trained))
        conversion = self._conversion(groups)
        sizes = [
            each for files in (*(files for _, files in groups), self._files_of(validated)) for each in files.items()
        ]
        self._share = self._sampled_share(conversion, sizes, records)
        found, apart = [], []
        for planned, files in groups:
            one, aside = self._pass(conversion, planned, files, aside=not validated)
            found.append(one)
            apart += aside
        pieces = (
            apart if not validated else [each for each, _ in self._pieces(conversion, self._files_of(validated), None)]
        )
        self._check_refusals()
        words = f"{VALIDATION_SHARE:.0%} of the records of {trained[0]}, chosen by their features"
        if validated:
            words = validated[0] if len(validated) == 1 else f"{validated[0]} to {validated[-1]}"
        hours = Hours(
            passes=tuple(one for one in found if one.records),
            validation=tuple(piece for piece in pieces if piece.records),
            validated=words,
            share=self._share,
        )
        if not hours.passes or not hours.validation:
            what = "train" if not hours.passes else "validate with"
            raise SearchHoursRefused(f"there is no record to {what}; give other hours by --hours and --validate")
        clicks = sum(one.clicks for one in hours.passes)
        if not 0 < clicks < sum(one.shows for one in hours.passes):
            raise SearchHoursRefused(
                f"{'none' if not clicks else 'each'} of the shows that are trained was clicked, so nothing can be learned; is "
                "data.label right, and are there enough hours?"
            )
        return hours

    def _files_of(self, hours: Sequence[str]) -> dict[str, int]:
        wanted = set(hours)
        return {path: size for path, size in self._listing.files.items() if self._listing.splits[path] in wanted}

    def _groups(self, trained: Sequence[str]) -> Iterator[Group]:
        """Yield the passes as the master would plan them."""
        data, wanted = self._values.data, set(trained)
        planned = (
            passes_of_commits(trained, data.splits_per_pass)
            if data.is_table
            else passes(at_hours(data, f"{trained[0]}..{trained[-1]}", "--hours"))
        )
        for one in planned:
            files = self._files_of([split for split in one.splits if split in wanted])
            if files:
                yield one, files

    def _conversion(self, groups: Sequence[Group]) -> Conversion:
        values = self._values
        member = TrainingMember(data=values.data, features=values.features, model=values.model, store=StoreConfig())
        statistics = None if values.statistics is None else Statistics.from_json(values.statistics)
        if statistics is None and values.features is not None and values.features.needs_statistics:
            statistics = self._statistics(groups)
        return conversion_of(member, feature_document(member, statistics))

    def _statistics(self, groups: Sequence[Group]) -> Statistics:
        """Return the statistics of the first pass that has records."""
        assert self._values.features is not None
        reader = reader_of(self._values.data, self._values.features)
        for planned, files in groups:
            parts: dict[str, bytes] = {}
            records = 0
            for path, start, stop in ranges(files, self._values.data.task_bytes):
                result, _ = reader.analyze(self._source, control.Task(path=path, start=start, end=stop))
                parts[part_name(path, start)] = result.statistics
                records += result.records
                self._report(0, f"statistics of {planned.id}: {records:,} rows")
            if records:
                return merged(parts)
        raise SearchHoursRefused("the hours have no row; there is nothing to make statistics of")

    def _sampled_share(self, conversion: Conversion, files: Sequence[tuple[str, int]], records: int) -> float:
        """Return the share of records to keep, so that about `records` are left, estimated by the first file with records."""
        for path, size in files:
            [(_, start, stop), *_] = [*ranges({path: size}, self._values.data.task_bytes), (path, 0, 0)]
            target = self._folder / "first.txt"
            result, _ = convert_task(self._source, control.Task(path=path, start=start, end=stop), conversion, target)
            target.unlink()
            if result.records:
                ratio = records / (result.records * sum(each for _, each in files) / ((stop or size) - start))
                # Sampling is not worth it to drop less than 2 % of the records.
                return 1.0 if ratio > 0.98 else ratio
        return 1.0

    def _pass(
        self, conversion: Conversion, planned: Pass, files: Mapping[str, int], *, aside: bool
    ) -> tuple[TrainedPass, list[ConvertedPiece]]:
        """Return the converted pass, and with `aside` the records that are set apart for validation."""
        pieces, apart = [], []
        shows = clicks = 0
        for piece, result in self._pieces(conversion, files, planned.id):
            mine, counts = piece, (result.shows, result.clicks)
            if aside:
                mine, other = self._set_apart(piece)
                apart.append(other)
            if aside or self._share < 1:
                counts = counts_of(self._folder / mine.file)
            if self._values.data.holdout and mine.records:
                held = hold_out(self._folder / mine.file, self._values.data.holdout)
                mine = mine.model_copy(update={"held_out": held})
            shows, clicks = shows + counts[0], clicks + counts[1]
            if mine.records:
                pieces.append(mine)
        found = TrainedPass(id=planned.id, pieces=tuple(pieces), shows=shows, clicks=clicks, ends_day=planned.ends_day)
        return found, apart

    def _pieces(
        self, conversion: Conversion, files: Mapping[str, int], planned: str | None
    ) -> Iterator[tuple[ConvertedPiece, control.TaskResult]]:
        """Yield the tasks of a pass in the order in which the master would assign them; without a pass nothing is shuffled."""
        data, seed = self._values.data, self._values.model.seed
        order = None if planned is None else order_of_tasks(data, seed, planned)
        for [(path, start, stop), *further] in tasks_of(
            ranges(dict(files), data.task_bytes, order), files, data.task_bytes
        ):
            self._files += 1
            target = self._folder / f"{self._files}.txt"
            records = 0 if planned is None else order_of_records(data, seed, path, start)
            others = [control.Part(path=other, start=first, end=last) for other, first, last in further]
            task = control.Task(path=path, start=start, end=stop, shuffle_seed=records, further=others)
            result, _ = convert_task(self._source, task, conversion, target)
            for each in result.refused:
                self._refused[f"{each.reason} (such as {path}: {next(iter(each.examples), '')})"] += each.lines
            self._read += result.records
            kept = result.records if self._share >= 1 else self._thinned(target)
            read = sum((last or files[one]) - first for one, first, last in ((path, start, stop), *further))
            self._report(read, f"{self._read:,} records read")
            yield ConvertedPiece(file=target.name, records=kept), result

    def _thinned(self, file: Path) -> int:
        """Keep the sampled share of the records in the file, and return their number."""
        kept, count = file.with_suffix(".sampled"), 0
        with file.open("rb") as lines, kept.open("wb") as out:
            for line in lines:
                if is_chosen(line, self._share, _SAMPLE_SEED):
                    out.write(line)
                    count += 1
        kept.replace(file)
        return count

    def _set_apart(self, piece: ConvertedPiece) -> tuple[ConvertedPiece, ConvertedPiece]:
        """Split a piece into the records to train and the records to validate with."""
        file = self._folder / piece.file
        names = (file, file.with_suffix(".validation"))
        kept, counts = file.with_suffix(".kept"), [0, 0]
        with file.open("rb") as lines, kept.open("wb") as trained, names[1].open("wb") as validates:
            for line in lines:
                chosen = is_chosen(line, VALIDATION_SHARE, _VALIDATION_SEED)
                (validates if chosen else trained).write(line)
                counts[chosen] += 1
        kept.replace(file)
        return tuple(ConvertedPiece(file=name.name, records=count) for name, count in zip(names, counts, strict=True))  # type: ignore[return-value]

    def _check_refusals(self) -> None:
        refused, limit = self._refused.total(), self._values.data.max_refused_share
        rows = self._read + refused
        if rows and refused / rows > limit:
            [(reason, _)] = self._refused.most_common(1)
            raise SearchHoursRefused(
                f"{refused:,} of {rows:,} lines were refused, more than data.maxRefusedShare {limit:g}: {reason}; mend the lines or raise "
                "the share"
            )


def counts_of(file: Path) -> tuple[int, int]:
    """Return shows and clicks of a converted file, whose lines begin with `1 SHOW 1 CLICK`."""
    shows = clicks = 0
    with file.open("rb") as lines:
        for line in lines:
            _, show, _, click, _ = line.split(b" ", 4)
            shows, clicks = shows + int(show), clicks + int(click)
    return shows, clicks
