"""What the status of serving says of time."""

import time
from types import SimpleNamespace
from typing import cast

import pytest

from elastic_ctr.serving.app import ServingProcess


@pytest.mark.parametrize(("ahead", "age"), [(3600, 0.0), (-3600, 3600.0)])
def test_the_age_of_what_is_known_is_never_negative_whatever_the_clock_does(ahead: int, age: float) -> None:
    newest = int(time.time()) + ahead
    process = cast("ServingProcess", SimpleNamespace(event_time_max=lambda: newest))

    assert ServingProcess.freshness_seconds(process) == pytest.approx(age, abs=60)
    assert (ServingProcess.freshness_seconds(process) or 0) >= 0
