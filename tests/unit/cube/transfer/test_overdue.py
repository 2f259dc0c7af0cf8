"""Whether the live version is late, by the pace of its own data."""

from typing import Any

import pytest

from elastic_ctr.cube.transfer.release_status import overdue_intervals
from elastic_ctr.store.versions.manifest import VersionManifest

HOUR, DAY, BEGIN = 3600, 86_400, 1_780_000_000


def versions(every: int, count: int = 5, after: int = 600) -> list[VersionManifest]:
    """One every so many seconds, each published so long after its newest event."""

    def published(number: int) -> VersionManifest:
        event = BEGIN + number * every
        what_counts: dict[str, Any] = {"event_time_max": event, "created_at": float(event + after), "compacts": None}
        return VersionManifest.model_construct(version=number, **what_counts)

    return [published(number) for number in range(1, count + 1)]


def late(published: list[VersionManifest], seconds: float) -> float | None:
    """So long after the newest one was published."""
    return overdue_intervals(published, published[-1], published[-1].created_at + seconds)


@pytest.mark.parametrize("every", [HOUR, DAY])
def test_a_version_is_late_once_the_next_one_should_be_there(every: int) -> None:
    published = versions(every)

    assert [late(published, intervals * every) for intervals in (0, 1, 2, 4.5)] == pytest.approx([0, 0, 1, 3.5])


def test_a_daily_training_is_not_late_within_its_day() -> None:
    assert late(versions(DAY, after=5 * HOUR), 23 * HOUR) == 0


def test_windows_of_seconds_are_late_by_hours() -> None:
    assert late(versions(1), 1800) == 0
    assert late(versions(1), 5 * HOUR) == pytest.approx(4)


def test_days_that_are_long_past_are_not_late() -> None:
    assert late(versions(HOUR, after=400 * DAY), 30 * DAY) is None
    assert late(versions(DAY, after=400 * DAY), 30 * DAY) is None


def test_a_training_that_falls_behind_is_late() -> None:
    """The most punctual versions say when one is expected, not the late ones behind them."""
    published = [
        *versions(HOUR),
        *[
            each.model_copy(update={"version": 9, "event_time_max": BEGIN + 6 * HOUR, "created_at": BEGIN + 11 * HOUR})
            for each in versions(HOUR, 1)
        ],
    ]

    assert late(published, 0) == pytest.approx(5 - 600 / HOUR - 1)


def test_a_rollback_that_stays_is_late() -> None:
    published = versions(HOUR)

    assert overdue_intervals(published, published[0], published[-1].created_at) == pytest.approx(3)


def test_of_two_versions_and_of_none_no_pace_is_known() -> None:
    assert late(versions(HOUR, 2), 30 * DAY) is None
    assert overdue_intervals(versions(HOUR), None, BEGIN + DAY) is None
