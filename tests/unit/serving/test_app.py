"""What the status of serving says of time."""

from types import SimpleNamespace
from typing import cast

import pytest

from elastic_ctr.serving.app import ServingProcess


@pytest.mark.parametrize(
    ("newest", "age"), [(1000, 500.0), (1499, 1.0), (1500, 0.0), (1501, 0.0), (5100, 0.0), (None, None)]
)
def test_the_age_of_what_is_known_is_never_negative_whatever_the_clock_does(
    monkeypatch: pytest.MonkeyPatch, newest: int | None, age: float | None
) -> None:
    monkeypatch.setattr("elastic_ctr.serving.app.time.time", lambda: 1500.0)
    process = cast("ServingProcess", SimpleNamespace(event_time_max=lambda: newest))

    assert ServingProcess.freshness_seconds(process) == age
