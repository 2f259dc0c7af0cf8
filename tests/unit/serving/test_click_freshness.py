"""The freshness of clicks, of versions one after the other."""

import pytest

from elastic_ctr.runtime.status.serving_status import FreshnessQuantiles
from elastic_ctr.serving.click_freshness import RECENT_SECONDS, ClickFreshness
from elastic_ctr.store.versions.manifest import Arrival, VersionManifest


def version(*arrivals: tuple[int, float, float, int]) -> VersionManifest:
    return VersionManifest(
        version=1, kind="base", base=1, parent=None, pass_id="1", event_time_max=1, created_at=1.0,
        partitions=1, dim=1, keys=0, slots=("0",), sparse_dim=None, network="slot-dnn", cube_files=(),
        model_files=(), samples=0, auc_live=None, auc_published=None,
        arrivals=tuple(Arrival(*each) for each in arrivals),
    )  # fmt: skip


@pytest.fixture
def clicks() -> ClickFreshness:
    """Of a pod whose first version knew pass 5."""
    found = ClickFreshness()
    found.answers(version((4, 80.0, 85.0, 10), (5, 90.0, 99.0, 10)), 100.0)
    return found


def test_the_first_version_of_a_pod_is_no_news(clicks: ClickFreshness) -> None:
    assert clicks.recent(100.0) is None
    assert sum(clicks.histogram.counts) == 0


def test_a_record_is_as_fresh_as_the_first_version_that_knows_it(clicks: ClickFreshness) -> None:
    clicks.answers(version((5, 90.0, 99.0, 10), (6, 100.0, 102.0, 40)), 103.0)

    # 40 records came evenly from 3 s to 1 s before.
    assert clicks.recent(103.0) == FreshnessQuantiles(p50=1.75, p90=2.75, p99=2.75, max=2.75, records=40)
    assert clicks.histogram.sum == pytest.approx(40 * 2.0)


def test_records_of_a_version_that_this_pod_skipped_are_in_the_next_one(clicks: ClickFreshness) -> None:
    clicks.answers(version((6, 100.0, 100.0, 3), (7, 101.0, 101.0, 1)), 102.0)

    assert clicks.recent(102.0) == FreshnessQuantiles(p50=2.0, p90=2.0, p99=2.0, max=2.0, records=4)


def test_after_a_rollback_and_after_passes_that_are_trained_again_nothing_is_counted_twice(
    clicks: ClickFreshness,
) -> None:
    clicks.answers(version((6, 100.0, 100.0, 4)), 101.0)
    clicks.answers(version((5, 90.0, 99.0, 10)), 150.0)
    clicks.answers(version((5, 90.0, 99.0, 10), (6, 100.0, 100.0, 4)), 160.0)

    assert sum(clicks.histogram.counts) == 4


def test_versions_of_hours_have_no_arrivals(clicks: ClickFreshness) -> None:
    clicks.answers(version(), 101.0)
    clicks.answers(version((6, 100.0, 100.0, 4)), 101.0)

    assert sum(clicks.histogram.counts) == 4


def test_only_the_last_minutes_are_recent_and_all_are_in_the_histogram(clicks: ClickFreshness) -> None:
    clicks.answers(version((6, 100.0, 100.0, 4)), 101.0)
    clicks.answers(version((7, 300.0, 300.0, 2)), 105.0 + RECENT_SECONDS)

    recent = clicks.recent(105.0 + RECENT_SECONDS)

    assert recent is not None
    assert recent.records == 2
    assert sum(clicks.histogram.counts) == 6


def test_kept_figures_are_bounded_though_they_are_never_read(clicks: ClickFreshness) -> None:
    for number in range(2000):
        clicks.answers(version((6 + number, 100.0 + number, 101.0 + number, 50)), 102.0 + number)

    assert len(clicks._recent) <= 4 * (RECENT_SECONDS + 1)
    assert sum(clicks.histogram.counts) == 2000 * 50


def test_a_clock_ahead_of_this_one_makes_no_negative_age(clicks: ClickFreshness) -> None:
    clicks.answers(version((6, 200.0, 210.0, 4)), 101.0)

    assert clicks.recent(101.0) == FreshnessQuantiles(p50=0.0, p90=0.0, p99=0.0, max=0.0, records=4)
