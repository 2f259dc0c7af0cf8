"""The sample lines of a version: what it must answer before it may be served."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from elastic_ctr.features.line import LineRefused, parse_features
from elastic_ctr.features.slots import SlotList
from elastic_ctr.serving.batching.instances import Instances, instances_of

Doubles = npt.NDArray[np.float64]


class SamplesDamaged(ValueError):
    """sample.jsonl cannot be what the manifest speaks of: which line, why."""


class Samples(NamedTuple):
    """Instances of the sample lines, and the probabilities f64 [rows] published for them."""

    instances: Instances
    published: Doubles


class Verdict(NamedTuple):
    """`refused` is None when every answer was near enough, else the sentence that names the worst line."""

    max_abs_diff: float
    refused: str | None


def read_samples(path: Path, slots: SlotList, expected: int) -> Samples:
    """Lines `{"line": features, "published": probability, …}`. Raises SamplesDamaged, OSError."""
    rows, published = [], []
    try:
        for line in path.read_bytes().splitlines():
            sample = orjson.loads(line)
            features = sample["line"].encode()
            # A training line may have no features at all.
            row = parse_features(features, slots, None).keys if features.strip() else [[] for _ in slots]
            published.append(float(sample["published"]))
            rows.append(row)
    except (LineRefused, ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise SamplesDamaged(
            f"{path.name} line {len(rows) + 1} is no sample with 'line' and 'published' ({type(wrong).__name__}: {wrong})"
        ) from wrong
    if len(rows) != expected:
        raise SamplesDamaged(f"{path.name} has {len(rows)} lines where the manifest says {expected}")
    return Samples(instances_of(rows, len(slots)), np.array(published, dtype=np.float64))


def compare(version: int, served: npt.ArrayLike, published: Doubles, allowed: float) -> Verdict:
    """Judge what was served by what was published. Whatever is not a number is refused."""
    answers = np.asarray(served, dtype=np.float64)
    if not len(published):
        return Verdict(0.0, None)
    differences = np.abs(answers - published)
    # A NaN is worse than any difference, and JSON has none to report it with.
    differences[np.isnan(differences)] = np.inf
    worst = int(np.argmax(differences))
    difference = float(differences[worst])
    if difference <= allowed:
        return Verdict(difference, None)
    return Verdict(
        min(difference, 1.0),
        f"version {version} answers sample line {worst + 1} with {answers[worst]:.9g}, and {published[worst]:.9g} was "
        f"published (difference {difference:.3g}, allowed {allowed:g}); publish the version again",
    )
