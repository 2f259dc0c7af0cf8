"""What the engine says of Paddle's errors; how it works beside Paddle is in tests/contract."""

from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pytest

from elastic_ctr.config.model import Model, ModelInput
from elastic_ctr.training.model.score_counter import ScoreCounter
from elastic_ctr.training.trainer import engine as module
from elastic_ctr.training.trainer.engine import Engine, EngineBroken


def test_a_batch_in_which_paddle_gives_up_is_said_with_its_likely_cause() -> None:
    def diverges(*_: object, **__: object) -> None:
        raise SystemError("(Fatal) Unexpected exception is catched in thread pool")

    engine = Engine.__new__(Engine)
    engine._graph = SimpleNamespace(counter=ScoreCounter())  # type: ignore[assignment]

    with pytest.raises(RuntimeError, match="may have diverged: lower the learning rates") as said:
        engine._run(None, None, diverges)

    assert isinstance(said.value.__cause__, SystemError)


def test_a_prediction_that_is_not_a_number_is_said_with_its_cause() -> None:
    engine, counter = Engine.__new__(Engine), ScoreCounter()
    engine._graph = SimpleNamespace(counter=counter)  # type: ignore[assignment]

    def predicts(*_: object, **__: object) -> None:
        counter.count([np.nan], [1.0], [1.0])

    with pytest.raises(RuntimeError, match="is not a number, so the training has diverged: lower the learning rates"):
        engine._run(None, None, predicts)


def test_a_batch_whose_prediction_is_not_a_number_is_given_up_before_it_is_learned() -> None:
    engine, counter = Engine.__new__(Engine), ScoreCounter()
    engine._graph = SimpleNamespace(counter=counter)  # type: ignore[assignment]
    learned: list[float] = []

    def trains(*_: object, **__: object) -> None:
        for logit in (0.0, np.inf, 1.0):
            try:
                counter.count([logit], [1.0], [1.0])
            except FloatingPointError as failed:
                raise SystemError("(Fatal) Unexpected exception is catched in thread pool") from failed
            learned.append(logit)

    with pytest.raises(EngineBroken, match="is not a number, so the training has diverged: lower the learning rates"):
        engine._run(None, None, trains, aborts=True)

    assert learned == [0.0]


def test_no_record_is_to_blame_where_the_network_has_no_number_for_one_without_keys_and_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = Engine.__new__(Engine)
    engine._model, engine._input = Model(), ModelInput(("a", "b"), numbers=("price",))
    monkeypatch.setattr(Engine, "pull_dense", lambda _: None)
    monkeypatch.setattr(Engine, "score", lambda *_: np.array([np.nan], np.float32))

    with pytest.raises(RuntimeError, match="the network has values that are not numbers, so the training has diverged"):
        engine.unpredictable(None)


@pytest.mark.parametrize(("keys", "pieces"), [(7, [3, 3, 1]), (6, [3, 3]), (2, [2]), (0, [])])
def test_many_keys_are_pulled_in_pieces_that_an_answer_of_the_server_has_room_for(
    monkeypatch: pytest.MonkeyPatch, keys: int, pieces: list[int]
) -> None:
    engine = Engine.__new__(Engine)
    engine._model = Model(embedding_dim=4)
    asked: list[int] = []

    def pulled(_: Engine, some: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
        asked.append(len(some))
        return np.repeat(some.astype(np.float32)[:, None], 4, axis=1)

    monkeypatch.setattr(Engine, "_pulled", pulled)
    # Three rows of four float32, and a part of a fourth.
    monkeypatch.setattr(module, "_PULLED_BYTES", 3 * 16 + 15)

    found = engine.pull(np.arange(100, 100 + keys, dtype=np.uint64))

    assert asked == pieces
    assert found.dtype == np.float32
    assert found.tolist() == [[key] * 4 for key in range(100, 100 + keys)]
