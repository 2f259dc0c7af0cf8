"""The ledger's figures of each pass: its quality before and after training, its learning, and the drift of its columns."""

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Literal, NamedTuple, Protocol

import numpy as np

from elastic_ctr.store.versions.manifest import PassLearning, PassQuality, Quality
from elastic_ctr.training.master.ledger.ledger_file import LedgerFile
from elastic_ctr.training.master.ledger.rows import DriftRow, Learning, WindowQuality

Moment = Literal["before", "after"]
MOMENTS: tuple[Moment, ...] = ("before", "after")
Figures = tuple[str | None, str | None]
"""The figures or the curves of a Quality in JSON, before and after training; None if there are none."""
# The names of curves in a Quality's JSON.
_CURVES = ("deciles", "roc")
_GONE = ", ".join(f"'$.{name}'" for name in _CURVES)
# Tasks with predictions, each with its sample of groups by a slot, if it has one.
_GROUPED = "from tasks left join groups on task = tasks.id and slot = ? where tasks.pass = ? and positives is not null and records > 0"
# Passes whose curves are kept: a year of hours takes 33 MB. Older passes keep their figures only.
KEPT_CURVES = 10_000
# Published micro-passes that a new version is compared with, and the micro-passes that are searched for them.
_COMPARED_PASSES, _LOOKED_AT = 20, 60
_AUC_COLUMNS = {"before": "auc_before", "after": "auc"}
# States of a pass whose predictions after training are counted.
_CALIBRATED = ("saving", "done")


class Compared(Protocol):
    """The figures that a comparison reads; None if undefined."""

    @property
    def shows(self) -> float: ...
    @property
    def clicks(self) -> float: ...
    @property
    def auc(self) -> float | None: ...
    @property
    def calibration(self) -> float | None: ...


class Expected(NamedTuple):
    """The reference for a new version's quality; `of` names its source in a message."""

    of: str
    quality: Compared


class Window(NamedTuple):
    """A micro-pass as a measure: its version, if any, and its figures; each record was predicted before it was learned."""

    ordinal: int
    version: int | None
    quality: WindowQuality


class FigureTable:
    """Figures are computed from a pass's histograms, which are deleted when the pass is done."""

    def __init__(self, file: LedgerFile) -> None:
        self._file = file

    def set_quality(self, ordinal: int, moment: Moment, quality: Quality | None) -> None:
        """Set the quality of a pass; None if it has no records."""
        with self._file:
            self._file.update(
                "passes", {_AUC_COLUMNS[moment]: None if quality is None else quality.auc}, "ordinal = ?", ordinal
            )
            self._file.do("delete from qualities where pass = ? and moment = ?", ordinal, moment)
            if quality is not None:
                document = quality.model_dump_json(by_alias=True)
                self._file.insert("qualities", {"ordinal": ordinal, "moment": moment, "document": document})
            # Passes have consecutive ordinals, so each loses its curves once.
            self._file.do(
                f"update qualities set document = json_remove(document, {_GONE}) where pass = ?", ordinal - KEPT_CURVES
            )

    def quality(self, ordinal: int) -> PassQuality:
        rows = self._file.all("select moment, document from qualities where pass = ?", ordinal)
        return PassQuality(**{moment: Quality.model_validate_json(document) for moment, document in rows})

    def since(self, first: int) -> dict[int, Figures]:
        """Return the figures, without curves, of the passes from `first` on, in one query."""
        return self._qualities(f"json_remove(document, {_GONE})", first)

    def curves(self, first: int) -> dict[int, Figures]:
        """Return the deciles and the ROC of the passes from `first` on."""
        found = ", ".join(f"'{name}', json_extract(document, '$.{name}')" for name in _CURVES)
        return self._qualities(f"json_object({found})", first)

    def windows(self, last: int, first: int, count: int) -> list[Window]:
        """Return up to `count` micro-passes from `first` to `last` that have an AUC and a calibration, the newest first."""
        rows = self._file.all(
            "select pass, passes.version, json_extract(document, '$.shows', '$.clicks', '$.auc', '$.calibration')"
            " from qualities join passes on ordinal = pass"
            " where moment = 'before' and pass between ? and ? order by pass desc limit ?",
            first,
            last,
            count,
        )
        found = [Window(number, version, WindowQuality(*json.loads(document))) for number, version, document in rows]
        return [each for each in found if None not in each.quality]

    def expected(self, last: int, most_refused: int, *, stream: bool = False, first: int = 0) -> Expected | None:
        """Return the newest published version's quality on the first pass that it had not learned. After `most_refused` refusals since,
        return the quality of pass `last` before training instead. None without a published version or such a pass up to `last`.

        With `stream`, return the joint quality of the last published micro-passes from pass `first` on.
        """
        [refused] = self._file.one(
            "select count(*) from versions where state = 'refused'"
            " and id > (select max(id) from versions where state = 'published')"
        )
        if refused >= most_refused:
            before = self.quality(last).before
            of = f"of the same pass before training, which counts after {refused} refused versions in a row"
            return None if before is None else Expected(of, before)
        if stream:
            return self._in_stream(last, first)
        row = self._file.one(
            "select versions.id, passes.id, document from versions"
            " join qualities on qualities.pass > versions.pass and moment = 'before' join passes on ordinal = qualities.pass"
            " where versions.id = (select max(id) from versions where state = 'published') and ordinal <= ?"
            " order by ordinal limit 1",
            last,
        )
        if row is None:
            return None
        version, pass_id, document = row
        return Expected(
            f"of version {version} over pass {pass_id} before training", Quality.model_validate_json(document)
        )

    def set_groups(self, task: str, ordinal: int, slot: str, groups: bytes) -> None:
        """Set the sample of groups of a task's last predictions; empty if there is none."""
        if groups:
            self._file.insert("groups", {"task": task, "ordinal": ordinal, "slot": slot, "data": groups})
        else:
            self._file.do("delete from groups where task = ?", task)

    def is_grouped(self, ordinal: int, slot: str) -> bool:
        """True if there are predictions, and every task with predictions has a sample by this slot."""
        tasks, samples = self._file.one(f"select count(*), count(task) {_GROUPED}", slot, ordinal)
        return bool(0 < tasks == samples)

    def groups(self, ordinal: int, slot: str) -> Iterator[bytes]:
        """Yield the samples by this slot one at a time, because those of many tasks do not fit into memory."""
        for task in self._file.all(f"select task {_GROUPED} and task is not null order by task", slot, ordinal):
            [data] = self._file.one("select data from groups where task = ?", task[0])
            yield bytes(data)

    def learning(self, ordinal: int) -> Learning:
        row = self._file.one("select document from learning where pass = ?", ordinal)
        return Learning() if row is None else Learning.model_validate_json(row[0])

    def set_learning(self, ordinal: int, learning: Learning) -> None:
        self._file.insert("learning", {"ordinal": ordinal, "document": learning.model_dump_json()})

    def last_shift(self, before: int, first: float = 0.0) -> float:
        """Return the shift of the last pass before this one, or `first` if there is none."""
        row = self._file.one("select document from learning where pass < ? order by pass desc limit 1", before)
        return first if row is None else Learning.model_validate_json(row[0]).shift

    def learned(self, first: int, last: int | None = None) -> dict[int, PassLearning]:
        """Return the learning of the passes from `first` on, in one query, without epochs that a recovery has undone."""
        found = self._file.all(
            "select ordinal, state, epoch, document,"
            " (select coalesce(sum(records), 0) from held_out where held_out.pass = ordinal) from passes"
            " left join learning on learning.pass = ordinal where ordinal >= ? and (? or ordinal <= ?) order by ordinal",
            first,
            last is None,
            last,
        )
        return {ordinal: _learned(*row) for ordinal, *row in found}

    def drifts(self, first: int = 0) -> dict[int, DriftRow]:
        """Return the drift by pass, in order, of the passes from `first` on."""
        rows = self._file.all("select pass, columns from drifts where pass >= ? order by pass", first)
        return {ordinal: DriftRow.model_validate_json(columns) for ordinal, columns in rows}

    def first_drift(self) -> int:
        """Return the first pass whose drift the ledger still has; 0 without any."""
        return int(self._file.one("select coalesce(min(pass), 0) from drifts")[0])

    def last_drift(self) -> tuple[int, DriftRow] | None:
        """Return the last pass that was compared with the pinned statistics, and its drift."""
        row = self._file.one("select pass, columns from drifts order by pass desc limit 1")
        return None if row is None else (int(row[0]), DriftRow.model_validate_json(row[1]))

    def _qualities(self, what: str, first: int) -> dict[int, Figures]:
        found: dict[int, Figures] = {}
        for ordinal, moment, document in self._file.all(
            f"select pass, moment, {what} from qualities where pass >= ? order by pass", first
        ):
            before, after = found.get(ordinal, (None, None))
            found[ordinal] = (document, after) if moment == "before" else (before, document)
        return found

    def _in_stream(self, last: int, first: int) -> Expected | None:
        """Return the joint figures of the last published micro-passes, because one alone is too small."""
        found = [each.quality for each in self.windows(last - 1, first, _LOOKED_AT) if each.version is not None]
        found = found[:_COMPARED_PASSES]
        return None if not found else Expected(f"of the {len(found)} published passes before it", together(found))


def _learned(state: str, epoch: int, document: str | None, held_out: int) -> PassLearning:
    known = Learning() if document is None else Learning.model_validate_json(document)
    return PassLearning(
        epochs=epoch,
        batch_sizes=known.batch_sizes[:epoch],
        held_out=held_out,
        losses=known.losses[: epoch + 1],
        shift=known.shift if state in _CALIBRATED and document is not None else None,
    )


def together(windows: Sequence[WindowQuality]) -> WindowQuality:
    """Return the figures of several windows as one. AUC and calibration are means weighted by clicks."""
    # np.array would make an array of each window, which costs ten times as much.
    figures = np.fromiter(chain.from_iterable(windows), float, len(windows) * len(WindowQuality._fields))
    shows, clicks, auc, calibration = figures.reshape(-1, len(WindowQuality._fields)).T
    return WindowQuality(
        float(shows.sum()),
        float(clicks.sum()),
        *(float(np.average(each, weights=clicks)) for each in (auc, calibration)),
    )
