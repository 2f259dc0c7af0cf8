import json
from pathlib import Path

import numpy as np
import pytest

from elastic_ctr.formats.slots import SlotList
from elastic_ctr.serving.batching.schema import Schema
from elastic_ctr.serving.worker_process import SamplesDamaged, compare, read_samples

SLOTS = Schema(SlotList(("0", "1")))


def written(folder: Path, *samples: object) -> Path:
    path = folder / "sample.jsonl"
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return path


def test_samples_are_lines_and_what_was_published_for_them(tmp_path: Path) -> None:
    path = written(tmp_path, {"line": "5:1 6:0 7:1", "published": 0.25, "show": 1}, {"line": "", "published": 0.5})

    instances, published = read_samples(path, SLOTS, 2)

    assert instances.feasigns.tolist() == [6, 5, 7]
    assert instances.lengths.tolist() == [1, 2, 0, 0]
    assert published.tolist() == [0.25, 0.5]


@pytest.mark.parametrize(
    "wrong", [{"line": "5:1"}, {"published": 0.5}, {"line": "x", "published": 0.5}, [], 7, {"line": 1}]
)
def test_a_sample_that_is_none_is_named_by_its_line(tmp_path: Path, wrong: object) -> None:
    path = written(tmp_path, {"line": "5:1", "published": 0.5}, wrong)

    with pytest.raises(SamplesDamaged, match=r"sample.jsonl line 2 is no sample"):
        read_samples(path, SLOTS, 2)


def test_too_few_samples_are_noticed(tmp_path: Path) -> None:
    with pytest.raises(SamplesDamaged, match="has 1 lines where the manifest says 2"):
        read_samples(written(tmp_path, {"line": "5:1", "published": 0.5}), SLOTS, 2)


def test_answers_within_the_tolerance_pass_with_their_largest_difference() -> None:
    verdict = compare(7, [0.5, 0.250004], np.array([0.5, 0.25]), 1e-5)

    assert verdict.refused is None
    assert verdict.max_abs_diff == pytest.approx(4e-6)


def test_a_refusal_names_version_worst_line_and_both_values() -> None:
    verdict = compare(7, [0.5, 0.3, 0.26], np.array([0.5, 0.25, 0.25]), 1e-5)

    assert verdict.refused is not None
    assert "version 7 answers sample line 2 with 0.3, and 0.25 was published" in verdict.refused


def test_a_score_that_is_not_a_number_never_passes() -> None:
    verdict = compare(7, [float("nan"), 0.5], np.array([0.5, 0.5]), 1e-5)

    assert verdict.refused is not None
    assert "sample line 1" in verdict.refused
    assert verdict.max_abs_diff == 1.0


def test_no_samples_differ_by_nothing() -> None:
    assert compare(7, np.zeros(0), np.zeros(0), 1e-5) == (0.0, None)
