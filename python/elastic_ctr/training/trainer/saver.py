"""A trainer's part in a save: pull the sample, export the dense network, let the servers save; later score the written values."""

import hashlib
import http.client
import json
import logging
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from elastic_ctr.config import feature_document
from elastic_ctr.config.feature_document import FeatureDocument
from elastic_ctr.config.model import Model
from elastic_ctr.config.serving_settings import MAX_ABS_DIFF
from elastic_ctr.features.quantiser import quantised
from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter
from elastic_ctr.formats.value_kind import kind_of
from elastic_ctr.store.backends import AlreadyPublished, Store
from elastic_ctr.store.versions import layout
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.export.published import publish_once
from elastic_ctr.training.export.table_text import DIVERGED
from elastic_ctr.training.trainer.converted_files import on_scratch
from elastic_ctr.training.trainer.converter import Conversion, SampleKeys
from elastic_ctr.training.trainer.engine import Engine

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]


class Saver:
    """Saves while no task is open, so the tables do not change. `stepped`: a step has begun, which may have changed the tables."""

    def __init__(
        self,
        engine: Engine,
        store: Store,
        conversion: Conversion,
        document: FeatureDocument | None,
        model: Model,
        scratch: Path,
    ) -> None:
        self.stepped = False
        self._engine = engine
        self._store = store
        self._conversion = conversion
        self._document = document
        self._dim = model.embedding_dim
        self._scratch = scratch

    def save(self, order: control.SaveOrder) -> control.SaveResult:
        """Do the work that leaves the tables unchanged first, then the steps that change them, each once."""
        began = time.monotonic()
        by_key = any(step.name == "touched" for step in order.steps)
        if not by_key:
            self._engine.flush()
        self._engine.pull_dense()
        self._engine.set_offset(order.offset)
        result = control.SaveResult()
        if order.version:
            sample = self._conversion.sample([each.line for each in order.samples])
            keys = np.union1d(np.frombuffer(order.touched, "<u8"), sample.keys) if by_key else sample.keys
            pulled = self._engine.pull(keys)
            values = pulled[np.searchsorted(keys, sample.keys)]
            live = self._engine.score(sample.pooled(values), sample.numbers)
            result.live = live.astype("<f4").tobytes()
            if by_key:
                # The published values are the pulled ones, so the score of the sample is already known.
                result.MergeFrom(self._publish_sample(order, sample, live.tolist(), values, live))
                result.cube_files.append(self._publish_touched(order.version, keys, pulled))
                result.counts_file.CopyFrom(self._publish_counts(order))
            else:
                result.keys = sample.keys.astype("<u8").tobytes()
                result.values = values.astype("<f4").tobytes()
            with on_scratch(self._scratch):
                files = self._engine.export_dense(self._scratch / "dense")
                if self._document is not None:
                    files.append(self._scratch / "dense" / feature_document.FILE)
                    files[-1].write_bytes(self._document.to_json())
            for file in files:
                # An interrupted attempt wrote the same bytes, because the tables have not changed. Other bytes fail, because they may
                # be committed already.
                path = f"{layout.model_folder(order.version)}/{file.name}"
                result.model_files.append(control.File(**dict(publish_once(self._store, file, path, 0))))
        result.seconds["denseExport"] = time.monotonic() - began
        result.rows.extend(self._count_rows())
        for step in order.steps:
            if step.name == "touched":
                continue
            self.stepped = True
            began = time.monotonic()
            if step.name == "shrink":
                self._engine.shrink()
            else:
                self._engine.save(step.folder, mode=step.name)
            result.seconds[step.name] = time.monotonic() - began
        return result

    def _count_rows(self) -> list[int]:
        """Return the number of rows at each pserver, [] if one does not answer: a save does not fail because of a statistic."""
        try:
            return self._engine.count_rows()
        except (OSError, http.client.HTTPException, ValueError) as failed:
            log.warning("the rows of the table are not counted: %s", failed)
            return []

    def score(self, order: control.SaveOrder) -> control.SaveResult:
        """Score the sample with the written values as a dictionary returns them. Serving must return the same scores."""
        began = time.monotonic()
        self._engine.pull_dense()
        self._engine.set_offset(order.offset)
        sample = self._conversion.sample([each.line for each in order.samples])
        keys = np.frombuffer(order.keys, "<u8")
        if not np.array_equal(keys, sample.keys):
            raise RuntimeError("the published values are of other keys than the sample's")
        values = np.frombuffer(order.values, "<f4").reshape(len(keys), self._dim)
        result = self._publish_sample(order, sample, np.frombuffer(order.live, "<f4").tolist(), values)
        result.seconds["score"] = time.monotonic() - began
        return result

    def _publish_touched(self, version: int, keys: npt.NDArray[np.uint64], values: Floats) -> control.File:
        """Publish a delta as one file of all partitions. Raises RuntimeError for a value that is not finite."""
        if not np.isfinite(values).all():
            wrong = keys[~np.isfinite(values).all(axis=1)]
            raise RuntimeError(
                f"the values of {len(wrong)} of {len(keys)} keys are no numbers, of key {wrong[0]} first: {DIVERGED}"
            )
        return self._publish_rows(layout.cube_file(version, "delta", 0, 1), str(version), keys, values)

    def _publish_counts(self, order: control.SaveOrder) -> control.File:
        """Publish the shows and clicks of the delta, which a checkpoint by log adds to its rows."""
        keys = np.frombuffer(order.touched, "<u8")
        counts = np.frombuffer(order.touched_counts, "<f4").reshape(len(keys), 2)
        return self._publish_rows(layout.counts_file(order.version), f"{order.version}-counts", keys, counts)

    def _publish_rows(self, path: str, seed: str, keys: npt.NDArray[np.uint64], values: Floats) -> control.File:
        file = self._scratch / Path(path).name
        with on_scratch(self._scratch), SequenceFileWriter(file, seed=seed) as writer:
            writer.write(keys, values)
        return control.File(**dict(publish_once(self._store, file, path, len(keys))))

    def _publish_sample(
        self,
        order: control.SaveOrder,
        sample: SampleKeys,
        live: Sequence[float],
        values: Floats,
        scored: Floats | None = None,
    ) -> control.SaveResult:
        """Score the sample with published `values` of its keys as a dictionary returns them, and publish the scores. `scored`: the scores
        with these values, if they are known.
        """
        kind, diff = kind_of(order.values_kind), 0.0
        if scored is None or kind != "float32":
            published = self._engine.score(sample.pooled(quantised(values, kind)), sample.numbers)
        else:
            published = scored
        if kind != "float32":
            if scored is None:
                scored = self._engine.score(sample.pooled(values), sample.numbers)
            diff = float(np.abs(published - scored).max(initial=0))
        lines = [
            {"line": each.line, "show": each.show, "click": each.click, "live": was, "published": now}
            for each, was, now in zip(order.samples, live, published.tolist(), strict=True)
        ]
        result = self._publish_scores(lines, published, order.version)
        result.values_kind = kind
        # A manifest cannot have NaN; the scores themselves show it.
        result.quantised_diff = diff if math.isfinite(diff) else 0.0
        return result

    def _publish_scores(
        self, lines: Sequence[Mapping[str, Any]], scores: npt.NDArray[np.float32], version: int
    ) -> control.SaveResult:
        """Publish the sample once. An earlier attempt's file stays if its scores agree within rounding, which may differ between
        machines; else the version is refused.
        """
        path = f"{layout.model_folder(version)}/sample.jsonl"
        data = "".join(f"{json.dumps(line)}\n" for line in lines).encode()
        try:
            self._store.put_bytes(data, path)
        except AlreadyPublished:
            data = self._store.get_bytes(path)
            found = _scores_in(data, lines)
            if found is None or not np.allclose(found, scores, rtol=0, atol=MAX_ABS_DIFF, equal_nan=True):
                because = (
                    "is not of the same sample lines, or damaged"
                    if found is None
                    else f"scores the sample otherwise, by more than {MAX_ABS_DIFF:g}"
                )
                return control.SaveResult(
                    refused=f"{path} was published by an attempt before this one and {because}: the version is given up"
                )
            scores = found
        file = control.File(path=path, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())
        return control.SaveResult(published=scores.astype("<f4").tobytes(), model_files=[file])


def _scores_in(there: bytes, lines: Sequence[Mapping[str, Any]]) -> npt.NDArray[np.float32] | None:
    """Return the scores in a sample file, or None if it has other lines."""
    try:
        found = [json.loads(line) for line in there.splitlines()]
        same = [_unscored(line) for line in found] == [_unscored(line) for line in lines]
        return np.array([line["published"] for line in found], "<f4") if same else None
    except (ValueError, KeyError, TypeError):
        return None


def _unscored(line: Mapping[str, Any]) -> str:
    # Compared as text, where NaN equals NaN.
    return json.dumps({**line, "published": 0}, sort_keys=True)
