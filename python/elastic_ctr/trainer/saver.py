"""A trainer's part in a save: pull the sample, export the dense network, have the servers save; later score what was written."""

import json
import time
from pathlib import Path

import numpy as np

from elastic_ctr.control import control_pb2 as control
from elastic_ctr.export.published import publish_once
from elastic_ctr.features.slots import SlotList
from elastic_ctr.store import Store
from elastic_ctr.trainer.engine import Engine
from elastic_ctr.trainer.tasks import sample_keys
from elastic_ctr.versions import layout


class Saver:
    """Called while no task is open: the tables stand still."""

    def __init__(self, engine: Engine, store: Store, slots: SlotList, sparse_dim: int | None, scratch: Path) -> None:
        self._engine = engine
        self._store = store
        self._slots = slots
        self._sparse_dim = sparse_dim
        self._scratch = scratch

    def save(self, order: control.SaveOrder) -> control.SaveResult:
        """Everything that may fail without harm first; then the steps that change the table, each once."""
        seconds: dict[str, float] = {}
        began = time.monotonic()
        self._engine.flush()
        self._engine.pull_dense()
        result = control.SaveResult()
        if order.version:
            sample = sample_keys([each.line for each in order.samples], self._slots, self._sparse_dim)
            values = self._engine.pull(sample.keys)
            pooled = sample.pooled(values).reshape(len(order.samples), -1)
            result.keys = sample.keys.astype("<u8").tobytes()
            result.values = values.astype("<f4").tobytes()
            result.live = self._engine.score(pooled).astype("<f4").tobytes()
            files = self._engine.export_dense(self._scratch / "dense")
            result.model_files.extend(self._publish(file, order.version) for file in files)
        seconds["denseExport"] = time.monotonic() - began
        for step in order.steps:
            began = time.monotonic()
            if step.name == "shrink":
                self._engine.shrink()
            else:
                self._engine.save(step.folder, mode=step.name)
            seconds[step.name] = time.monotonic() - began
        for name, taken in seconds.items():
            result.seconds[name] = taken
        return result

    def _publish(self, file: Path, version: int) -> control.File:
        # While the tables stand still an attempt that was cut off wrote the same bytes; others may be committed by now.
        entry = publish_once(self._store, file, f"{layout.model_folder(version)}/{file.name}", 0)
        return control.File(path=entry.path, bytes=entry.bytes, sha256=entry.sha256)

    def score(self, order: control.SaveOrder) -> control.SaveResult:
        """What the network says to the values that were written: what serving must say too."""
        began = time.monotonic()
        self._engine.pull_dense()
        sample = sample_keys([each.line for each in order.samples], self._slots, self._sparse_dim)
        keys = np.frombuffer(order.keys, "<u8")
        if not np.array_equal(keys, sample.keys):
            raise RuntimeError("the published values are of other keys than the sample's")
        values = np.frombuffer(order.values, "<f4").reshape(len(keys), -1)
        published = self._engine.score(sample.pooled(values).reshape(len(order.samples), -1))
        live = np.frombuffer(order.live, "<f4")
        lines = [
            json.dumps(
                {"line": each.line, "show": each.show, "click": each.click, "live": float(was), "published": float(now)}
            )
            for each, was, now in zip(order.samples, live.tolist(), published.tolist(), strict=True)
        ]
        file = self._scratch / "sample.jsonl"
        file.write_text("".join(f"{line}\n" for line in lines))
        result = control.SaveResult(
            published=published.astype("<f4").tobytes(), model_files=[self._publish(file, order.version)]
        )
        result.seconds["score"] = time.monotonic() - began
        return result
