import errno
import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.features.quantiser import quantised
from elastic_ctr.formats.seqfile.file_reader import SequenceFileReader
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.formats.value_kind import ValueKind
from elastic_ctr.store.backends import FileStore, StoreError
from elastic_ctr.store.versions.manifest import digest_of
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.trainer.converted_files import ScratchFailed
from elastic_ctr.training.trainer.converter import ClickConversion
from elastic_ctr.training.trainer.engine import Engine as PaddleEngine
from elastic_ctr.training.trainer.saver import Saver

SLOTS = SlotList(("a", "b"))
SAMPLES = [control.Sample(line="5:a 7:b", show=2, click=1), control.Sample(line="7:a 9:other", show=1, click=0)]


class Engine:
    """Paddle's calls in the order in which they were made; a key's values are the key itself."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fails_at = ""
        self.rounds_by = self.offset = 0.0
        self.rows = [7, 5]

    def _called(self, name: str) -> None:
        if name == self.fails_at:
            raise RuntimeError(f"{name} failed")
        self.calls.append(name)

    def flush(self) -> None:
        self._called("flush")

    def pull_dense(self) -> None:
        self._called("pull_dense")

    def set_offset(self, value: float) -> None:
        self.offset = value

    def pull(self, keys: Any) -> Any:
        self._called("pull")
        return np.stack([keys, keys], axis=1).astype(np.float32)

    def score(self, pooled: Any, _numbers: Any) -> Any:
        self._called("score")
        return pooled.sum(axis=1) / 100 + self.rounds_by + self.offset

    def export_dense(self, folder: Path) -> list[Path]:
        self._called("export_dense")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "network.pdmodel").write_bytes(b"network" if not self.offset else b"network at %g" % self.offset)
        return [folder / "network.pdmodel"]

    def count_rows(self) -> list[int]:
        self._called("count_rows")
        return self.rows

    def save(self, folder: str, mode: str) -> None:
        self._called(f"{mode} {folder}")

    def shrink(self) -> None:
        self._called("shrink")


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def saver(engine: Engine, tmp_path: Path) -> Saver:
    (tmp_path / "scratch").mkdir()
    model = Model(embedding_dim=2)
    conversion = ClickConversion(SLOTS, None, 1 << 20)
    return Saver(engine, FileStore(tmp_path / "store"), conversion, None, model, tmp_path / "scratch")  # type: ignore[arg-type]


def order(version: int = 7) -> control.SaveOrder:
    steps = [
        control.SaveStep(name=name, folder=f"save/1-1-{name}") for name in ("shrink", "base", "batch", "checkpoint")
    ]
    return control.SaveOrder(version=version, samples=SAMPLES, steps=steps)


def test_all_that_may_fail_comes_before_the_first_step_and_each_step_is_done_once(saver: Saver, engine: Engine) -> None:
    saver.save(order())

    assert engine.calls == [
        "flush",
        "pull_dense",
        "pull",
        "score",
        "export_dense",
        "count_rows",
        "shrink",
        "base save/1-1-base",
        "batch save/1-1-batch",
        "checkpoint save/1-1-checkpoint",
    ]


@pytest.mark.parametrize("fails_at", ["flush", "pull_dense", "pull", "score", "export_dense"])
def test_a_failure_before_the_steps_leaves_the_table_as_it_was(saver: Saver, engine: Engine, fails_at: str) -> None:
    engine.fails_at = fails_at

    with pytest.raises(RuntimeError, match=fails_at):
        saver.save(order())

    assert not {"shrink", "base save/1-1-base"} & set(engine.calls)


def test_a_save_reports_pulled_values_and_scores_and_publishes_the_network(saver: Saver, tmp_path: Path) -> None:
    result = saver.save(order())

    assert np.frombuffer(result.keys, "<u8").tolist() == [5, 7]
    assert np.frombuffer(result.values, "<f4").tolist() == [5, 5, 7, 7]
    np.testing.assert_allclose(np.frombuffer(result.live, "<f4"), [0.24, 0.14], rtol=1e-6)
    assert [file.path for file in result.model_files] == ["output/ctr_model/7/network.pdmodel"]
    assert {"shrink", "base", "batch", "checkpoint"} < set(result.seconds)
    assert FileStore(tmp_path / "store").get_bytes("output/ctr_model/7/network.pdmodel") == b"network"


def test_a_save_reports_the_rows_of_each_pserver_before_its_steps(saver: Saver) -> None:
    assert list(saver.save(order()).rows) == [7, 5]


@pytest.mark.parametrize("error", [OSError("refused"), TimeoutError("60 s"), ValueError("no count")])
def test_a_server_that_does_not_count_its_rows_costs_no_save(
    saver: Saver, engine: Engine, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def failing() -> list[int]:
        raise error

    monkeypatch.setattr(engine, "count_rows", failing)

    assert list(saver.save(order()).rows) == []
    assert engine.calls[-1] == "checkpoint save/1-1-checkpoint"


def test_the_offset_of_a_save_is_in_the_network_and_in_all_scores(saver: Saver, tmp_path: Path) -> None:
    saved = saver.save(control.SaveOrder(version=7, samples=SAMPLES, offset=0.25))
    order = score_order([5, 7])
    order.offset = 0.25
    scored = saver.score(order)

    assert FileStore(tmp_path / "store").get_bytes(saved.model_files[0].path) == b"network at 0.25"
    without = saver.save(control.SaveOrder(version=8, samples=SAMPLES))
    for found in (saved.live, scored.published):
        assert np.frombuffer(found, "<f4")[0] > 0.25
    assert np.frombuffer(saved.live, "<f4") - np.frombuffer(without.live, "<f4") == pytest.approx([0.25, 0.25])


def test_a_save_without_a_version_exports_nothing(saver: Saver, engine: Engine, tmp_path: Path) -> None:
    result = saver.save(control.SaveOrder(steps=[control.SaveStep(name="checkpoint", folder="c")]))

    assert engine.calls == ["flush", "pull_dense", "count_rows", "checkpoint c"]
    assert not result.model_files
    assert list(FileStore(tmp_path / "store").walk("output")) == []


def test_a_scratch_that_cannot_be_written_is_another_error_than_a_store_that_cannot(
    saver: Saver, engine: Engine, tmp_path: Path
) -> None:
    (tmp_path / "scratch/dense").write_bytes(b"")

    with pytest.raises(ScratchFailed, match=r"scratch/dense: File exists; the trainer's scratch folder must have room"):
        saver.save(order())
    (tmp_path / "scratch/dense").unlink()
    (tmp_path / "store").write_bytes(b"")
    with pytest.raises(StoreError, match="cannot be written to file://"):
        saver.save(order())

    assert not {"shrink", "base save/1-1-base"} & set(engine.calls)


def test_a_file_that_is_published_is_never_replaced(saver: Saver, tmp_path: Path) -> None:
    store = FileStore(tmp_path / "store")
    saver.save(order())
    saver.save(order())
    store.delete("output/ctr_model/7/network.pdmodel")
    store.put_bytes(b"another's", "output/ctr_model/7/network.pdmodel")

    with pytest.raises(StoreError, match=r"network\.pdmodel is published already with other bytes"):
        saver.save(order())

    assert store.get_bytes("output/ctr_model/7/network.pdmodel") == b"another's"


SAMPLE = "output/ctr_model/7/sample.jsonl"


def score_order(keys: list[int]) -> control.SaveOrder:
    values = np.stack([keys, np.zeros(len(keys))], axis=1).astype("<f4")
    live = np.array([0.25, 0.5], "<f4")
    return control.SaveOrder(
        version=7,
        samples=SAMPLES,
        keys=np.array(keys, "<u8").tobytes(),
        values=values.tobytes(),
        live=live.tobytes(),
    )


def test_published_values_are_scored_and_stand_in_the_sample_file(saver: Saver, tmp_path: Path) -> None:
    result = saver.score(score_order([5, 7]))

    np.testing.assert_allclose(np.frombuffer(result.published, "<f4"), [0.12, 0.07], rtol=1e-6)
    lines = [
        json.loads(line)
        for line in FileStore(tmp_path / "store").get_bytes("output/ctr_model/7/sample.jsonl").splitlines()
    ]
    assert [(line["line"], line["show"], line["click"], line["live"]) for line in lines] == [
        ("5:a 7:b", 2, 1, 0.25),
        ("7:a 9:other", 1, 0, 0.5),
    ]
    assert [line["published"] for line in lines] == np.frombuffer(result.published, "<f4").tolist()


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_a_sample_is_scored_with_the_values_that_a_dictionary_will_answer(
    saver: Saver, engine: Engine, kind: ValueKind
) -> None:
    order = score_order([5, 7])
    values = np.array([[0.1, 0.3], [1234.567, -0.7]], "<f4")
    order.values, order.values_kind = values.tobytes(), kind

    result = saver.score(order)

    (first, second), stored = values.astype(np.float64), quantised(values, kind)
    published = np.frombuffer(result.published, "<f4")
    np.testing.assert_allclose(published, [stored.sum() / 100, stored[1].sum() / 100], rtol=1e-6)
    assert result.values_kind == kind
    changes = np.abs(published - [(first + second).sum() / 100, second.sum() / 100])
    assert 0 < result.quantised_diff == pytest.approx(changes.max(), rel=0.01)


def test_a_sample_of_floats_is_scored_once_and_changed_by_nothing(saver: Saver, engine: Engine) -> None:
    result = saver.score(score_order([5, 7]))

    assert (result.values_kind, result.quantised_diff) == ("float32", 0)
    assert engine.calls.count("score") == 1


def test_a_kind_of_values_that_this_release_does_not_know_is_refused_with_a_sentence(saver: Saver) -> None:
    order = score_order([5, 7])
    order.values_kind = "int4"

    with pytest.raises(ValueError, match="as float32, float16, int8, not as int4; are all roles of one release"):
        saver.score(order)


def test_a_sample_that_is_scored_again_on_a_machine_that_rounds_otherwise_keeps_what_is_published(
    saver: Saver, engine: Engine, tmp_path: Path
) -> None:
    first = saver.score(score_order([5, 7]))
    engine.rounds_by = 1e-6

    again = saver.score(score_order([5, 7]))

    assert again.refused == ""
    assert again.published == first.published
    assert again.model_files == first.model_files
    FileStore(tmp_path / "store").get(SAMPLE, tmp_path / "there")
    assert digest_of(tmp_path / "there") == (first.model_files[0].bytes, first.model_files[0].sha256)


def test_a_sample_that_is_published_with_other_scores_gives_the_version_up_with_a_sentence(
    saver: Saver, engine: Engine
) -> None:
    saver.score(score_order([5, 7]))
    engine.rounds_by = 1e-3

    again = saver.score(score_order([5, 7]))

    assert again.refused == (
        f"{SAMPLE} was published by an attempt before this one and scores the sample otherwise, by more than 1e-05: "
        "the version is given up"
    )
    assert not again.model_files


@pytest.mark.parametrize("there", [b"", b"no json", b"[1]", b'{"line": "5:a 7:b"}\n', b'{"published": 0.5}\n' * 2])
def test_a_published_sample_of_other_lines_gives_the_version_up(saver: Saver, tmp_path: Path, there: bytes) -> None:
    FileStore(tmp_path / "store").put_bytes(there, SAMPLE)

    assert saver.score(score_order([5, 7])).refused == (
        f"{SAMPLE} was published by an attempt before this one and is not of the same sample lines, or damaged: the version is "
        "given up"
    )


def test_a_sample_with_a_score_that_is_no_number_is_the_same_when_it_is_scored_again(
    saver: Saver, engine: Engine
) -> None:
    order = score_order([5, 7])
    order.live = np.array([np.nan, 0.5], "<f4").tobytes()
    engine.rounds_by = np.nan
    first = saver.score(order)

    again = saver.score(order)

    assert again.refused == ""
    assert again.published == first.published


def test_a_scoring_needs_no_scratch(saver: Saver, tmp_path: Path) -> None:
    (tmp_path / "scratch").rmdir()

    assert saver.score(score_order([5, 7])).refused == ""


def test_an_error_of_a_shared_store_is_not_taken_for_the_scratch(
    saver: Saver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = os.stat

    def stale(path: Any, *given: Any, **more: Any) -> Any:
        if str(path).startswith(f"{tmp_path}/store"):
            raise OSError(errno.ESTALE, "Stale file handle", str(path))
        return stat(path, *given, **more)

    monkeypatch.setattr(os, "stat", stale)

    with pytest.raises(StoreError, match="Stale file handle"):
        saver.save(order())
    with pytest.raises(StoreError, match="Stale file handle"):
        saver.score(score_order([5, 7]))


@pytest.mark.parametrize("samples", [[], [control.Sample(line="9:other", show=1, click=0)]])
def test_samples_without_a_key_are_saved_and_scored_as_what_they_are(
    saver: Saver, samples: list[control.Sample]
) -> None:
    saved = saver.save(control.SaveOrder(version=7, samples=samples))
    scored = saver.score(control.SaveOrder(version=7, samples=samples, live=saved.live))

    assert (saved.keys, saved.values) == (b"", b"")
    assert len(np.frombuffer(saved.live, "<f4")) == len(np.frombuffer(scored.published, "<f4")) == len(samples)


def test_without_keys_or_lines_the_engine_makes_no_call_of_paddle() -> None:
    engine = PaddleEngine(Model(embedding_dim=5), ModelInput(("a", "b")), 1, threads=1)

    assert engine.pull(np.zeros(0, np.uint64)).shape == (0, 5)
    assert engine.score(np.zeros((0, 10), np.float32), np.zeros((0, 0), np.float32)).shape == (0,)


def test_values_of_other_keys_than_the_samples_are_refused(saver: Saver) -> None:
    with pytest.raises(RuntimeError, match="of other keys than the sample's"):
        saver.score(score_order([5, 8]))


def touched_order(keys: list[int], *before: str) -> control.SaveOrder:
    steps = [control.SaveStep(name=name, folder=f"save/{name}") for name in (*before, "touched")]
    counts = np.array([[key + 1, key] for key in keys], "<f4")
    touched = np.array(keys, "<u8").tobytes()
    return control.SaveOrder(version=7, samples=SAMPLES, steps=steps, touched=touched, touched_counts=counts.tobytes())


def rows_of(store: FileStore, path: str, folder: Path) -> dict[int, list[float]]:
    store.get(path, folder / "there.seq")
    found: dict[int, list[float]] = {}
    with closing(SequenceFileReader(folder / "there.seq")) as blocks:
        for keys, values in blocks:
            found.update(zip(keys.tolist(), values.tolist(), strict=True))
    return found


def test_a_delta_by_key_has_what_was_pulled_and_is_scored_and_published_at_once(
    saver: Saver, engine: Engine, tmp_path: Path
) -> None:
    result = saver.save(touched_order([3, 7, 12]))

    assert engine.calls == ["pull_dense", "pull", "score", "export_dense", "count_rows"]
    assert not saver.stepped
    [file] = result.cube_files
    assert (file.path, file.records) == ("output/ctr_cube/7/delta/feature-00000-of-00001.seq", 4)
    # 5 is a key of the sample alone.
    store = FileStore(tmp_path / "store")
    assert rows_of(store, file.path, tmp_path) == {key: [key, key] for key in (3, 5, 7, 12)}
    assert (result.counts_file.path, result.counts_file.records) == ("output/ctr_cube/7/counts.seq", 3)
    assert rows_of(store, result.counts_file.path, tmp_path) == {key: [key + 1, key] for key in (3, 7, 12)}
    np.testing.assert_allclose(np.frombuffer(result.live, "<f4"), [0.24, 0.14], rtol=1e-6)
    assert result.published == result.live
    assert {each.path for each in result.model_files} == {SAMPLE, "output/ctr_model/7/network.pdmodel"}


def test_a_checkpoint_is_saved_beside_a_delta_by_key(saver: Saver, engine: Engine) -> None:
    result = saver.save(touched_order([3], "checkpoint"))

    assert engine.calls[-1] == "checkpoint save/checkpoint"
    assert saver.stepped
    assert len(result.cube_files) == 1


def test_a_delta_by_key_that_is_made_again_publishes_the_same_bytes(saver: Saver) -> None:
    first, again = saver.save(touched_order([3, 7])), saver.save(touched_order([3, 7]))

    assert again.cube_files == first.cube_files
    assert again.published == first.published


def test_a_touched_value_that_is_no_number_is_named_and_publishes_no_delta(
    saver: Saver, engine: Engine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pull = engine.pull

    def diverged(keys: Any) -> Any:
        values = pull(keys)
        values[keys == 12, 1] = np.inf
        return values

    monkeypatch.setattr(engine, "pull", diverged)

    with pytest.raises(RuntimeError, match="the values of 1 of 4 keys are no numbers, of key 12 first: the model has"):
        saver.save(touched_order([3, 7, 12]))

    assert not [path for path in FileStore(tmp_path / "store").walk("output") if "ctr_cube" in str(path)]
