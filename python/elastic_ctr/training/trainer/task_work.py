"""The work of a trainer on its tasks: analyses, checks, rounds of training and prediction, saves."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.config.role_files import TrainerFile
from elastic_ctr.formats.cells import RowSample
from elastic_ctr.formats.keys import PADDING_KEY
from elastic_ctr.formats.record_arrays import record_arrays
from elastic_ctr.sources.streams.interface import Stream
from elastic_ctr.store.backends import Store
from elastic_ctr.store.backends.source import Source
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.model.evaluation import Histograms
from elastic_ctr.training.model.grouped_auc import NOTHING
from elastic_ctr.training.trainer.conversions import Conversions
from elastic_ctr.training.trainer.converted_files import hold_out, on_scratch, parts_of
from elastic_ctr.training.trainer.converter import convert_task
from elastic_ctr.training.trainer.engine import Engine
from elastic_ctr.training.trainer.refusals import quarantine
from elastic_ctr.training.trainer.saver import Saver
from elastic_ctr.training.trainer.supervisor import WATCH_FILE
from elastic_ctr.training.trainer.task_lines import Suspects
from elastic_ctr.training.trainer.watchdog import ServerWatchdog, delegated_to_parent

# The most touched keys of a task, so that its result fits into a message.
_MOST_TOUCHED = 3 << 20
_SUSPECTS_AT_ONCE = 512


class TaskWork:
    """Owns the converted records on the scratch disk, and the datasets that Paddle has loaded from them."""

    def __init__(
        self,
        settings: TrainerFile,
        engine: Engine,
        watchdog: ServerWatchdog,
        conversions: Conversions,
        source: Source | Stream,
        store: Store,
        saver_store: Store,
    ) -> None:
        """`engine` is connected. `saver_store` is the store with the shorter retries of a save."""
        self._settings = settings
        self._engine = engine
        self._watchdog = watchdog
        self._conversions = conversions
        self._source = source
        self._store = store
        self._saver_store = saver_store
        self._scratch = Path(settings.trainer.scratch_dir)
        self._tasks = self._scratch / "tasks"
        self._saver: Saver | None = None
        # Keeps datasets alive until `release`: freeing one while it loads aborts the process, and the exit code is lost.
        self._datasets: list[Any] = []

    def converted_tasks(self) -> list[str]:
        """Return the ids of the tasks whose records are on the scratch disk."""
        return [each.stem for each in self._tasks.glob("*.txt")]

    def _converted(self, task: control.Task) -> Path:
        return self._tasks / f"{task.id}.txt"

    def forget_other_passes(self, task: control.Task) -> None:
        """Delete files of other passes. Task ids begin with their pass: `<ledger>-<ordinal>-<number>`."""
        if task.phase in (control.ANALYZE, control.CHECK, control.TRAIN, control.EVALUATE):
            mine = task.id.rpartition("-")[0] + "-"
            with on_scratch(self._tasks):
                for file in self._tasks.glob("*"):
                    if not file.name.startswith(mine):
                        file.unlink(missing_ok=True)

    @property
    def stepped(self) -> bool:
        """True if a step of the present save has begun."""
        return self._saver is not None and self._saver.stepped

    def analyze(self, task: control.Task) -> control.TaskResult:
        """Collect the statistics of a task's rows. Raises StoreError, ColumnsRefused."""
        if self._conversions.rows is None:
            raise AssertionError("lines of feasigns have no columns to analyze")
        result, refused = self._conversions.rows.analyze(self._source, task)
        quarantine(self._store, task, refused)
        return result

    def check(self, task: control.Task) -> control.TaskResult:
        """Convert a task's records and, unless training does, predict them. Raises the errors of the conversion, ScratchFailed."""
        file = self._converted(task)
        conversion = self._conversions.recipe(task.statistics).conversion
        suspects = Suspects(file.with_suffix(".suspects"))
        sample = RowSample() if task.collect else None
        result, refused = convert_task(self._source, task, conversion, file, sample, suspects)
        if unpredictable := self._unpredictable(suspects):
            task.left_out.extend(unpredictable)
            sample = RowSample() if task.collect else None
            result, refused = convert_task(self._source, task, conversion, file, sample)
            result.unpredictable.extend(unpredictable)
        quarantine(self._store, task, refused)
        if self._conversions.rows is not None and sample is not None:
            result.statistics = self._conversions.rows.of_sample(sample)
        # For a stream, training predicts each batch before it learns from it.
        if result.records and (task.holdout or not self._settings.data.is_stream):
            predicted, records = file, result.records
            if task.holdout:
                # Only the held-out records, which are also predicted after training; the others will have been learned by then.
                with on_scratch(file):
                    records = result.held_out = hold_out(file, task.holdout)
                predicted = parts_of(file).held_out
            if records:
                dataset = self._engine.ready(self._engine.preload(predicted, task.batch_size), records)
                self._engine.set_offset(task.offset)
                scored = self._scored(task, partial(self._engine.predict, dataset))
                dataset.release_memory()
                result.MergeFrom(scored)
            else:
                result.MergeFrom(self._without_records(task))
        return result

    def _unpredictable(self, suspects: Suspects) -> list[control.LeftOut]:
        """Return the suspects that the present model cannot predict. Raises RuntimeError if the model itself is broken."""
        if not len(suspects):
            return []
        dataset = self._engine.ready(self._engine.preload(suspects.file, _SUSPECTS_AT_ONCE), len(suspects))
        found = self._engine.unpredictable(dataset)
        dataset.release_memory()
        with on_scratch(suspects.file):
            suspects.file.unlink()
        return suspects.left_out(found)

    def _scored(self, task: control.Task, run: Callable[..., Histograms]) -> control.TaskResult:
        """Run a round and return its histograms and its sample of groups."""
        grouped = self._groups(task)
        positives, negatives = run(group_rows=task.group_rows if grouped else 0)
        result = control.TaskResult(positives=positives.tobytes(), negatives=negatives.tobytes())
        if grouped:
            result.group, result.groups = task.group, self._engine.groups().to_bytes()
        return result

    def _without_records(self, task: control.Task) -> control.TaskResult:
        """Return the result of a round without records, with an empty sample of groups if one is expected."""
        grouped = self._groups(task)
        return control.TaskResult(group=task.group, groups=NOTHING.to_bytes()) if grouped else control.TaskResult()

    def _groups(self, task: control.Task) -> bool:
        """True if master and trainer group by the same slot; they may differ during an upgrade."""
        return bool(task.group) and task.group == self._settings.data.group

    def prepare(self, task: control.Task) -> Any:
        """Start loading a task's dataset and return it for `round`. Raises the errors of the conversion, ScratchFailed."""
        self._datasets.append(self._engine.preload(self._file_of(task), task.batch_size))
        return self._datasets[-1]

    def release(self, dataset: Any) -> None:
        """Release a dataset whose round is over."""
        self._datasets.remove(dataset)

    def _file_of(self, task: control.Task) -> Path:
        """Return the file of a training's or evaluation's records, converted again if another trainer has checked them."""
        file = self._converted(task)
        if not file.exists():
            self._convert_again(task, file)
        if not task.holdout:
            return file
        parts = parts_of(file)
        if not all(part.exists() for part in parts):
            with on_scratch(file):
                hold_out(file, task.holdout)
        return parts.trained if task.phase == control.TRAIN else parts.held_out

    def _convert_again(self, task: control.Task, file: Path) -> None:
        counts, _ = convert_task(self._source, task, self._conversions.recipe(task.statistics).conversion, file)
        if counts.records != task.all_records:
            with on_scratch(file):
                file.unlink()
            if counts.gone:
                raise RuntimeError(
                    f"{task.path} has dropped {counts.gone} offsets since they were checked: say `elastic-ctr pass retry`, and the pass begins "
                    "with what is left; let the stream keep them for longer"
                )
            others = f" with {len(task.further)} more files" if task.further else ""
            raise RuntimeError(
                f"{task.path}{others} has {counts.records} good lines where its check found {task.all_records}: it was changed"
            )

    def round(self, task: control.Task, dataset: Any) -> control.TaskResult:
        """Train or predict the dataset of `prepare`. Raises RuntimeError if records are lost, ScratchFailed."""
        try:
            try:
                # Computed while Paddle still reads the records.
                touched = self._touched(task)
            except BaseException:
                # A dataset must not be freed while it loads.
                dataset.wait_preload_done()
                raise
            dataset = self._engine.ready(dataset, task.records)
        except RuntimeError:
            with on_scratch(self._tasks):
                for file in (self._converted(task), *parts_of(self._converted(task))):
                    file.unlink(missing_ok=True)
            raise
        self._engine.set_offset(task.offset)
        if not task.records:
            # The phase has no record of this task. Paddle would never return from a round over nothing.
            dataset.release_memory()
            return self._without_records(task)
        if task.phase == control.TRAIN:
            result = self._trained(task, dataset)
            result.MergeFrom(touched)
        else:
            result = self._scored(task, partial(self._engine.predict, dataset))
        dataset.release_memory()
        result.records = task.records
        return result

    def _trained(self, task: control.Task, dataset: Any) -> control.TaskResult:
        self._watchdog.running(task.attempt)
        # If a server is lost meanwhile, it may block the engine, and with it every thread of this process.
        with delegated_to_parent(self._watchdog, self._scratch / WATCH_FILE):
            # All pushes arrive before `train` returns, so another trainer may save right after the report.
            return self._scored(task, partial(self._engine.train, dataset))

    def _touched(self, task: control.Task) -> control.TaskResult:
        """Return the touched keys of a task, if the master wants them and they fit into a message."""
        if not (task.phase == control.TRAIN and task.touched and task.records):
            return control.TaskResult()
        given = self._settings.input
        file = self._file_of(task)
        with on_scratch(file):
            text = file.read_bytes()
        if text.count(b"\n") != task.records:
            # The disk has lost records; `ready` raises the error.
            return control.TaskResult()
        keys, counts = touched_keys(text, task.records, len(given.slots), numbers=bool(given.numbers))
        if len(keys) > _MOST_TOUCHED:
            return control.TaskResult()
        return control.TaskResult(
            touched_told=True, touched=keys.astype("<u8").tobytes(), touched_counts=counts.astype("<f4").tobytes()
        )

    def save(self, task: control.Task) -> control.TaskResult:
        """Do the steps of a save, or score its sample. Raises the errors of Saver; then `stepped` is True if the table may have changed."""
        # Reset before anything can fail, so that `stepped` is not that of an earlier save.
        self._saver = None
        recipe = self._conversions.recipe(task.statistics)
        self._saver = Saver(
            self._engine, self._saver_store, recipe.conversion, recipe.document, self._settings.model, self._scratch
        )
        work = self._saver.save if task.phase == control.SAVE else self._saver.score
        with delegated_to_parent(self._watchdog, self._scratch / WATCH_FILE):
            return control.TaskResult(save=work(task.save))


Keys = npt.NDArray[np.uint64]
Counts = npt.NDArray[np.float32]


def touched_keys(text: bytes, records: int, slots: int, *, numbers: bool) -> tuple[Keys, Counts]:
    """Return the sorted unique keys uint64 [n] of a converted text, without the padding key, and float32 [n, 2], the shows and clicks of
    the records that have them, counted for each occurrence of a key.

    Args:
        text: lines of the engine's input (features/record_text.py has the format).
        records: the number of lines.
        slots: the number of groups of keys in a line.
        numbers: True if a group of numbers precedes them.
    """
    import pyarrow as pa

    found = record_arrays(text, records, slots, numbers=numbers)
    keys_of_each = found.lengths.reshape(records, slots).sum(axis=1)
    # By a hash table: with frequent keys np.unique takes several times as long.
    encoded = pa.array(found.keys).dictionary_encode()
    unique, places = (each.to_numpy(zero_copy_only=False) for each in (encoded.dictionary, encoded.indices))
    added = [np.repeat(each, keys_of_each) for each in (found.shows, found.clicks)]
    counts = np.stack([np.bincount(places, each, len(unique)) for each in added], axis=1)
    order = np.argsort(unique)
    known = order[unique[order] != PADDING_KEY]
    return unique[known], counts[known].astype(np.float32)
