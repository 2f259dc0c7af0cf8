"""A loss of quality after a version went live holds the publishing of a stream, until an operator resumes it."""

from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from elastic_ctr.config.training_settings import LiveLoss, QualityLoss
from elastic_ctr.cube.transfer.state import REMEMBERED, ReleaseState, kept_for_holds
from elastic_ctr.store.backends import StoreError
from elastic_ctr.store.versions.published_files import published_versions
from elastic_ctr.store.versions.safeguards import newest_hold, write_resumption
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.calendar.quality_gate import (
    MOST_ON_TRIAL,
    LossAfterLive,
    abrupt_loss,
    auc_deviation,
    auc_error,
    limits_of,
    loss_after_live,
    newest_windows,
)
from elastic_ctr.training.master.ledger.figure_table import Window
from elastic_ctr.training.master.ledger.rows import WindowQuality
from elastic_ctr.training.master.metrics import MasterMetrics
from elastic_ctr.training.master.saves.publishing_hold import HoldAnnouncer
from elastic_ctr.training.master.training_status import status
from elastic_ctr.training.model.evaluation import quality_of_scores, weighted_auc
from quality_oracles import histogram_of_scores
from training.master.stream_world import StreamWorld

ABRUPT, LASTING = QualityLoss(), LiveLoss()
Labels = npt.NDArray[np.bool_]


def quality(auc: float = 0.8, calibration: float = 1.0, clicks: int = 200) -> WindowQuality:
    return WindowQuality(4 * clicks, clicks, auc, calibration)


GOOD = quality()


def windows(*newest_first: WindowQuality, good: int = 100, refused: tuple[int, ...] = ()) -> list[Window]:
    """These windows, and as many good ones before them; each has made the version of its ordinal, unless it was refused."""
    found = [*newest_first, *(good * [GOOD])]
    ordinals = range(len(found), 0, -1)
    return [
        Window(ordinal, None if ordinal in refused else 1000 + ordinal, each)
        for ordinal, each in zip(ordinals, found, strict=True)
    ]


def judged(*newest_first: WindowQuality, **given: Any) -> LossAfterLive | None:
    return loss_after_live(windows(*newest_first, **given), ABRUPT, LASTING)


def test_windows_that_stay_as_they_were_hold_nothing() -> None:
    assert judged(good=200) is None


@pytest.mark.parametrize(
    ("bad", "told"), [(quality(auc=0.5), "AUC 0.5000"), (quality(calibration=2.5), "calibration 2.5000")]
)
def test_an_abrupt_loss_in_three_windows_holds_publishing_and_suspects_the_version_before_the_first_of_them(
    bad: WindowQuality, told: str
) -> None:
    found = judged(bad, bad, bad)

    assert found is not None
    # A hundred good windows: the version of the last one is what the first bad one speaks against.
    assert found.suspects == (1100, 1103)
    assert f"{told} of the last 3 windows without the worst" in found.reason
    assert "maxQualityLoss" in found.reason
    assert "elastic-ctr rollback --resume" in found.reason


def test_a_small_loss_holds_once_it_lasts_for_ten_thousand_clicks() -> None:
    worse = quality(auc=0.772)

    assert judged(*(15 * [worse])) is None
    found = judged(*(50 * [worse]))
    assert found is not None
    assert "maxLiveLoss.auc 0.015" in found.reason
    assert found.suspects == (1100, 1150)


def test_the_standard_error_of_an_auc_is_close_above_that_of_repeated_draws() -> None:
    random = np.random.default_rng(3)

    def drawn() -> float:
        clicks, others = random.normal(1.2, 1, 300), random.normal(0, 1, 900)
        return float(np.searchsorted(np.sort(others), clicks).sum() / 300 / 900)

    found = [drawn() for _ in range(400)]

    quality = WindowQuality(1200, 300, float(np.mean(found)), 1.0)
    # Hanley and McNeil's scores are exponential, and these are normal.
    assert np.std(found) < auc_deviation(quality) < 1.3 * np.std(found)
    assert auc_deviation(quality) < auc_error(quality)


def test_cube_transfer_keeps_a_version_from_before_the_longest_trial() -> None:
    # The version before the first window on trial is a suspect, too.
    for newest in range(1000, 1004):
        was_live = tuple(range(newest - REMEMBERED + 1, newest + 1))
        suspects = set(was_live[-(MOST_ON_TRIAL + 1) :])
        assert kept_for_holds(ReleaseState(generation=1, was_live=was_live)) - suspects


def test_a_calibration_that_is_too_low_counts_as_one_that_is_too_high() -> None:
    assert judged(*(50 * [quality(calibration=0.5)])) is not None


@pytest.mark.parametrize("place", range(12))
def test_one_odd_window_holds_nothing_however_bad_it_is(place: int) -> None:
    trial = [GOOD] * 12
    trial[place] = quality(auc=0.2, calibration=4.0)

    assert judged(*trial) is None


def test_the_figures_that_are_shown_are_those_of_the_newest_windows_together() -> None:
    shown = newest_windows(windows(*(25 * [quality(auc=0.7, calibration=2.0)]), good=100))

    # Fifty windows of two hundred clicks.
    assert shown is not None
    assert shown[0] == 50
    assert shown[1] == pytest.approx((40_000, 10_000, 0.75, 1.5))
    assert newest_windows([]) is None


def test_one_window_of_a_thousand_clicks_is_enough() -> None:
    found = judged(quality(auc=0.5, clicks=1000))

    assert found is not None
    assert "of the last window is lower" in found.reason
    assert found.suspects == (1100, 1101)


def test_the_chance_of_few_clicks_holds_nothing_and_the_same_loss_of_many_does() -> None:
    assert judged(*(3 * [quality(auc=0.6, clicks=40)])) is None
    assert judged(*(3 * [quality(auc=0.6, clicks=2000)])) is not None


def test_windows_that_made_no_version_are_judged_and_are_no_measure() -> None:
    bad = quality(auc=0.6)
    # The bad ones were refused, and so were the windows before them, whose AUC is no measure.
    found = judged(*(7 * [bad]), *(5 * [quality(auc=0.1)]), refused=tuple(range(101, 113)))

    assert found is not None
    assert "0.8000 of the 100 published before" in found.reason
    assert found.suspects is None


def test_nothing_is_held_without_windows_to_compare_with() -> None:
    bad = quality(auc=0.3)

    assert loss_after_live([], ABRUPT, LASTING) is None
    assert judged(bad, bad, bad, good=0) is None
    assert judged(bad, bad, bad, good=5) is not None


def test_limits_of_one_and_of_a_large_number_never_hold() -> None:
    never = {"auc": 1, "calibration": 1000}
    bad = 100 * [quality(auc=0.1, calibration=9.0)]

    assert loss_after_live(windows(*bad), QualityLoss(**never), LiveLoss(**never)) is None


class Clicks:
    """Windows of 1,000 impressions of a truth that drifts, predicted by a logistic regression that learns each window after it."""

    def __init__(self, seed: int, drift: float) -> None:
        self._random = np.random.default_rng(seed)
        self._truth = self._random.normal(0, 0.6, 32)
        self._learned = np.zeros(32)
        self._drift = drift

    def windows(self, count: int, label: Callable[[Labels], Labels] = lambda clicks: clicks) -> Iterator[WindowQuality]:
        for _ in range(count):
            self._truth += self._random.normal(0, self._drift, 32)
            self._truth *= 0.6 * np.sqrt(32) / np.linalg.norm(self._truth)
            given = self._random.normal(0, 1, (1000, 32)) / 2
            clicks = self._random.random(1000) < 1 / (1 + np.exp(1 - given @ self._truth))
            seen = label(clicks).astype(float)
            predicted = 1 / (1 + np.exp(1 - given @ self._learned))
            for part in np.array_split(np.arange(1000), 20):
                slope = given[part].T @ (1 / (1 + np.exp(1 - given[part] @ self._learned)) - seen[part])
                self._learned -= 0.01 * slope
            auc = weighted_auc(predicted, seen, np.ones(1000))
            assert auc is not None
            yield WindowQuality(1000, float(seen.sum()), auc, float(predicted.sum() / seen.sum()))


def test_an_hour_of_a_drift_that_is_learned_holds_nothing_and_poisoned_labels_do_within_half_a_minute() -> None:
    clicks, newest = Clicks(1, drift=0.02), deque[Window](maxlen=150)

    def held(quality: WindowQuality, second: int) -> bool:
        newest.appendleft(Window(second, second, quality))
        return second % 3 == 0 and loss_after_live(list(newest), ABRUPT, LASTING) is not None

    assert not any(held(each, second) for second, each in enumerate(clicks.windows(3600)))
    poisoned = clicks.windows(30, lambda clicks: clicks ^ (np.arange(1000) % 4 == 0))
    assert any(held(each, second) for second, each in enumerate(poisoned, 3600))


def late_windows(factor: float, delay: float, seconds: int) -> Iterator[Window]:
    """A calibrated model, whose clicks come later by so many seconds in the mean; the traffic is multiplied after 120 s."""
    random = np.random.default_rng(2)
    coming: dict[int, list[float]] = {}
    for second in range(seconds):
        shows = random.poisson(500 * (factor if second >= 120 else 1))
        predicted = 1 / (1 + np.exp(1.5 - random.normal(0, 1, shows)))
        for score in predicted[random.random(shows) < predicted]:
            coming.setdefault(second + int(random.exponential(delay)), []).append(score)
        clicks = np.array(coming.pop(second, []))
        scores = np.concatenate([predicted, clicks])
        found = quality_of_scores(
            scores, np.arange(len(scores)) >= shows, (np.arange(len(scores)) < shows).astype(float)
        )
        if found is not None and found.auc is not None and found.calibration is not None:
            quality = WindowQuality(found.shows, found.clicks, found.auc, found.calibration)
            yield Window(second, 1000 + second, quality)


@pytest.mark.parametrize(("factor", "delay"), [(3, 20), (3, 10), (0.3, 20)])
def test_other_traffic_moves_the_calibration_of_late_clicks_and_holds_nothing(factor: float, delay: float) -> None:
    limits, newest = (limits_of(ABRUPT, True), limits_of(LASTING, True)), list[Window]()
    moved = False

    for window in late_windows(factor, delay, 200):
        # The first clicks are late, too.
        if window.ordinal >= 80:
            newest.insert(0, window)
            assert loss_after_live(newest[:150], *limits) is None
            moved = moved or loss_after_live(newest[:150], ABRUPT, LASTING) is not None

    assert moved


def test_limits_after_live_that_say_never_count_for_an_abrupt_loss_too() -> None:
    assert abrupt_loss(ABRUPT, LASTING) == ABRUPT
    assert abrupt_loss(ABRUPT, LiveLoss(auc=1, calibration=1000)) == QualityLoss(auc=1, calibration=1000)


def test_limits_without_late_clicks_are_as_they_were_set() -> None:
    assert limits_of(ABRUPT, False) == ABRUPT
    assert limits_of(ABRUPT, True).auc == ABRUPT.auc


# -- the ledger and the store ------------------------------------------------------------------------------------------


def scored(one: StreamWorld, bad: Callable[[int], bool], shows: int = 400) -> StreamWorld:
    """Trainers whose predictions are good, but for the passes that are `bad`, by their ordinals. Half of the shows are clicked."""
    random, click = np.random.default_rng(1), np.arange(shows) % 2
    noise = random.normal(0, 1, shows)
    fill = one.fill

    def filled(task: control.Task, result: control.TaskResult) -> None:
        fill(task, result)
        # Bad ones are in the wrong order, and all near the click rate: no worse than that.
        logits = 0.1 * noise - 0.1 * click if bad(int(task.pass_id.rpartition("/")[2])) else noise + 2 * (click - 0.5)
        predicted = 1 / (1 + np.exp(-logits))
        positives, negatives = histogram_of_scores(predicted, click, np.ones(shows))
        result.positives, result.negatives = positives.tobytes(), negatives.tobytes()

    one.fill = filled  # type: ignore[method-assign]
    return one


def go_on(one: StreamWorld, passes: int) -> None:
    done = max((each.ordinal for each in one.ledger.passes.all() if each.state == "done"), default=0)
    for ordinal in range(done + 1, done + passes + 1):
        one.append(8)
        one.done_up_to(ordinal)


def announce(one: StreamWorld) -> None:
    one.now += 10
    HoldAnnouncer(one.coordinator.lock, one.store).step()


def test_a_hold_publishes_nothing_is_in_the_store_and_ends_when_it_is_resumed(tmp_path: Path) -> None:
    one = scored(StreamWorld(tmp_path), lambda ordinal: ordinal >= 13)
    go_on(one, 12)
    good = published_versions(one.store)
    assert len(good) == 12
    go_on(one, 4)

    hold = status(one.coordinator).to_dict()["hold"]
    assert hold is not None
    assert one.ledger.facts.hold is not None
    # What came before the windows on trial is no suspect, and the last good version is one.
    assert hold["suspects"][1] == good[-1]
    assert hold["suspects"][0] > good[0]
    count = len(one.ledger.saves.versions())
    announce(one)
    told = newest_hold(one.store, 0)
    assert told is not None
    assert told.suspects == tuple(hold["suspects"])

    go_on(one, 5)
    # The passes are trained, and neither published nor refused one by one.
    assert len(one.ledger.saves.versions()) == count
    assert [each.state for each in one.ledger.passes.all() if each.state == "done"] == 21 * ["done"]
    assert _gauge(one, "publishing_held") == 1
    announce(one)
    assert one.ledger.facts.hold is not None

    write_resumption(one.store, told.number)
    announce(one)
    assert status(one.coordinator).to_dict()["hold"] is None
    assert _gauge(one, "publishing_held") == 0
    window = status(one.coordinator).to_dict()["window"]
    assert window["passes"] == 21
    assert _gauge(one, "stream_auc") == window["auc"]
    # What the clicks are like now is the new measure: as bad as they are, they are published.
    go_on(one, 15)
    assert [each["state"] for each in one.ledger.saves.versions()[count:]] == 15 * ["published"]


def test_a_changed_model_that_is_worse_than_the_one_before_publishes_nothing_until_it_is_resumed(
    tmp_path: Path,
) -> None:
    one = scored(StreamWorld(tmp_path), lambda _: True)
    one.ledger.set_facts(windows_before=20 * (quality(auc=0.9),))
    go_on(one, 5)

    hold = status(one.coordinator).to_dict()["hold"]
    assert hold is not None
    assert "0.9000 of the 20 published before" in hold["reason"]
    published = published_versions(one.store)
    # A version that went live before there were clicks enough is a suspect; those of the model before are none.
    assert hold["suspects"] == ([min(published), max(published)] if published else None)

    write_resumption(one.store, hold["number"])
    announce(one)
    announce(one)
    go_on(one, 5)
    assert len(published_versions(one.store)) == len(published) + 5


def test_a_changed_model_that_is_as_good_as_the_one_before_is_published(tmp_path: Path) -> None:
    one = scored(StreamWorld(tmp_path), lambda _: False)
    one.ledger.set_facts(windows_before=20 * (quality(auc=0.9),))
    go_on(one, 12)

    assert status(one.coordinator).to_dict()["hold"] is None
    assert len(published_versions(one.store)) == 12


def test_a_hold_outlives_the_master_and_a_pserver(tmp_path: Path) -> None:
    one = scored(StreamWorld(tmp_path), lambda ordinal: 13 <= ordinal <= 16)
    go_on(one, 16)
    announce(one)
    before = one.ledger.facts.hold
    assert before is not None
    assert before.announced

    one.start_master()
    assert one.ledger.facts.hold == before
    one.coordinator.declare_lost(0, "it is gone")
    go_on(one, 5)

    # Its windows are good again, and it is the operator who says so.
    assert one.ledger.facts.hold == before


def test_numbers_of_holds_grow_though_the_clock_was_set_back(tmp_path: Path) -> None:
    one = scored(StreamWorld(tmp_path), lambda ordinal: ordinal >= 13)
    ahead = int(one.now * 1000) + 10**9
    one.ledger.set_facts(last_hold=ahead)

    go_on(one, 16)

    assert one.ledger.facts.hold is not None
    assert one.ledger.facts.hold.hold.number == one.ledger.facts.last_hold == ahead + 1


def test_passes_are_trained_though_the_store_is_away_when_a_hold_is_to_be_announced(tmp_path: Path) -> None:
    one = scored(StreamWorld(tmp_path), lambda ordinal: ordinal >= 13)
    go_on(one, 16)
    announcer = HoldAnnouncer(one.coordinator.lock, Away(), lambda: one.now)  # type: ignore[arg-type]

    with pytest.raises(StoreError):
        announcer.step()
    # The next turn does its other work.
    announcer.step()
    one.now += 10
    with pytest.raises(StoreError):
        announcer.step()


class Away:
    """A store that does not answer."""

    def put_bytes(self, *_: object, **__: object) -> None:
        raise StoreError("it does not answer")


def test_one_bad_window_is_refused_and_holds_nothing(tmp_path: Path) -> None:
    one = scored(StreamWorld(tmp_path), lambda ordinal: ordinal == 13)

    go_on(one, 20)

    assert status(one.coordinator).to_dict()["hold"] is None
    assert [each["state"] for each in one.ledger.saves.versions()].count("refused") == 1


def _gauge(one: StreamWorld, name: str) -> float:
    [metric] = [each for each in MasterMetrics(one.coordinator).collect() if each.name == f"elastic_ctr_master_{name}"]
    return metric.samples[0].value
