"""What the engine says of Paddle's errors; how it works beside Paddle is in tests/contract."""

from types import SimpleNamespace

import pytest

from elastic_ctr.trainer.engine import Engine


def test_a_batch_in_which_paddle_gives_up_is_said_with_its_likely_cause() -> None:
    def diverges(*_: object, **__: object) -> None:
        raise SystemError("(Fatal) Unexpected exception is catched in thread pool")

    engine = Engine.__new__(Engine)
    engine._graph = SimpleNamespace(histograms=())  # type: ignore[assignment]

    with pytest.raises(RuntimeError, match="may have diverged: lower the learning rates") as said:
        engine._run(None, None, diverges)

    assert isinstance(said.value.__cause__, SystemError)
