"""A lasting loss of quality holds the publishing of a stream, until an operator resumes it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from elastic_ctr.config.roles import LiveLoss
from elastic_ctr.control import control_pb2 as control
from elastic_ctr.master.hold_announcer import HoldAnnouncer
from elastic_ctr.master.ledger_quality import Window
from elastic_ctr.master.metrics import MasterMetrics
from elastic_ctr.master.quality_gate import LAST, TRIAL, lasting_loss
from elastic_ctr.master.training_status import status
from elastic_ctr.model.evaluation import histogram_of_scores, quality_of_scores
from elastic_ctr.versions.holds import newest_hold, write_resumption
from elastic_ctr.versions.manifest import Quality, published_versions
from master.stream_world import StreamWorld

LIMITS = LiveLoss()
Labels = npt.NDArray[np.bool_]


def quality(auc: float = 0.8, calibration: float = 1.0, clicks: int = 500) -> Quality:
    return Quality(
        shows=4 * clicks, clicks=clicks, auc=auc, logloss=0.5, predicted_ctr=0.25, observed_ctr=0.25, calibration=calibration,
        bucket_error=None, mae=0.1, rmse=0.1,
    )  # fmt: skip


GOOD = quality()


def windows(*newest_first: Quality, good: int = 40, refused: tuple[int, ...] = ()) -> list[Window]:
    """These windows, and as many good ones before them; each has made the version of its ordinal, unless it was refused."""
    found = [*newest_first, *(good * [GOOD])]
    ordinals = range(len(found), 0, -1)
    return [
        Window(ordinal, None if ordinal in refused else 1000 + ordinal, each)
        for ordinal, each in zip(ordinals, found, strict=True)
    ]


def test_windows_that_stay_as_they_were_hold_nothing() -> None:
    assert lasting_loss(windows(good=60), LIMITS) is None


@pytest.mark.parametrize(
    ("bad", "name"), [(quality(auc=0.7), "AUC 0.7000"), (quality(calibration=1.6), "calibration 1.6000")]
)
def test_ten_windows_that_are_worse_hold_publishing_and_suspect_the_version_before_the_first_of_them(
    bad: Quality, name: str
) -> None:
    found = lasting_loss(windows(*(TRIAL * [bad])), LIMITS)

    assert found is not None
    # Forty good windows: the version of the last one is what the first bad one speaks against.
    assert found.suspects == (1040, 1050)
    assert name in found.reason
    assert "elastic-ctr rollback --resume" in found.reason


def test_a_calibration_that_is_too_low_counts_as_one_that_is_too_high() -> None:
    assert lasting_loss(windows(*(TRIAL * [quality(calibration=0.5)])), LIMITS) is not None


def test_one_odd_window_holds_nothing_however_bad_it_is() -> None:
    for place in range(TRIAL):
        trial = [GOOD] * TRIAL
        trial[place] = quality(auc=0.2, calibration=4.0)
        assert lasting_loss(windows(*trial), LIMITS) is None


def test_windows_that_have_recovered_hold_nothing() -> None:
    bad = quality(auc=0.55)

    assert lasting_loss(windows(*(LAST * [GOOD]), *((TRIAL - LAST) * [bad])), LIMITS) is None


def test_a_loss_within_chance_holds_nothing_and_the_same_loss_of_many_clicks_does() -> None:
    few, many = quality(auc=0.75, clicks=20), quality(auc=0.75, clicks=20_000)

    assert lasting_loss(windows(*(TRIAL * [few])), LIMITS) is None
    assert lasting_loss(windows(*(TRIAL * [many])), LIMITS) is not None


def test_windows_that_made_no_version_are_judged_and_are_no_measure() -> None:
    bad = quality(auc=0.6)
    # The bad ones were refused, and so were the windows before them, whose AUC is no measure.
    found = lasting_loss(windows(*(TRIAL * [bad]), *(5 * [quality(auc=0.1)]), refused=tuple(range(41, 56))), LIMITS)

    assert found is not None
    assert "0.8000 of the 20 published before" in found.reason
    assert found.suspects is None


def test_too_few_windows_hold_nothing() -> None:
    bad = quality(auc=0.5)

    assert lasting_loss(windows(*(TRIAL * [bad]), good=0), LIMITS) is None
    assert lasting_loss(windows(*(TRIAL * [bad]), good=1), LIMITS) is not None


def test_limits_of_one_and_of_a_large_number_never_hold() -> None:
    never = LiveLoss(auc=1, calibration=1000)

    assert lasting_loss(windows(*(TRIAL * [quality(auc=0.1, calibration=9.0)])), never) is None


class Clicks:
    """Windows of 1,000 impressions of a truth that drifts, predicted by a logistic regression that learns each window after it."""

    def __init__(self, seed: int, drift: float) -> None:
        self._random = np.random.default_rng(seed)
        self._truth = self._random.normal(0, 0.6, 32)
        self._learned = np.zeros(32)
        self._drift = drift

    def windows(self, count: int, label: Callable[[Labels], Labels] = lambda clicks: clicks) -> Iterator[Quality]:
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
            found = quality_of_scores(predicted, seen, np.ones(1000))
            assert found is not None
            yield found


def test_an_hour_of_a_drift_that_is_learned_holds_nothing_and_poisoned_labels_do_within_half_a_minute() -> None:
    clicks = Clicks(1, drift=0.02)
    found: list[Quality] = []

    def held() -> bool:
        newest = [Window(len(found) - back, len(found) - back, found[-1 - back]) for back in range(min(len(found), 50))]
        return lasting_loss(newest, LIMITS) is not None

    for each in clicks.windows(3600):
        found.append(each)
        assert not held()
    for number, each in enumerate(clicks.windows(30, lambda clicks: clicks ^ (np.arange(1000) % 4 == 0)), 1):
        found.append(each)
        if held():
            assert number <= 25
            return
    pytest.fail("poisoned labels hold nothing")


# -- the ledger and the store ------------------------------------------------------------------------------------------


def scored(one: StreamWorld, bad: Callable[[int], bool]) -> StreamWorld:
    """Trainers whose predictions are good, but for the passes that are `bad`, by their ordinals."""
    random, click = np.random.default_rng(1), np.arange(4000) % 2
    noise = random.normal(0, 1, 4000)
    fill = one.fill

    def filled(task: control.Task, result: control.TaskResult) -> None:
        fill(task, result)
        apart = -2.0 if bad(int(task.pass_id.rpartition("/")[2])) else 2.0
        predicted = 1 / (1 + np.exp(-(noise + apart * (click - 0.5))))
        positives, negatives = histogram_of_scores(predicted, click, np.ones(4000))
        result.positives, result.negatives = positives.tobytes(), negatives.tobytes()

    one.fill = filled  # type: ignore[method-assign]
    return one


def go_on(one: StreamWorld, passes: int) -> None:
    done = max((each.ordinal for each in one.ledger.passes() if each.state == "done"), default=0)
    for ordinal in range(done + 1, done + passes + 1):
        one.append(8)
        one.done_up_to(ordinal)


def announce(one: StreamWorld) -> None:
    one.now += 10
    HoldAnnouncer(one.coordinator, one.store).step()


def test_a_hold_publishes_nothing_is_in_the_store_and_ends_when_it_is_resumed(tmp_path: Path) -> None:
    one = scored(StreamWorld(tmp_path), lambda ordinal: ordinal >= 13)
    go_on(one, 12)
    good = published_versions(one.store)
    assert len(good) == 12
    go_on(one, 4)

    hold = status(one.coordinator)["hold"]
    assert hold is not None
    assert one.ledger.facts.hold is not None
    # What came before the windows on trial is no suspect, and the last good version is one.
    assert hold["suspects"][1] == good[-1]
    assert hold["suspects"][0] > good[0]
    count = len(one.ledger.versions())
    announce(one)
    told = newest_hold(one.store, 0)
    assert told is not None
    assert told.suspects == tuple(hold["suspects"])

    go_on(one, 5)
    # The passes are trained, and neither published nor refused one by one.
    assert len(one.ledger.versions()) == count
    assert [each.state for each in one.ledger.passes() if each.state == "done"] == 21 * ["done"]
    assert _gauge(one, "publishing_held") == 1
    announce(one)
    assert one.ledger.facts.hold is not None

    write_resumption(one.store, told.number)
    announce(one)
    assert status(one.coordinator)["hold"] is None
    assert _gauge(one, "publishing_held") == 0
    # What the clicks are like now is the new measure: as bad as they are, they are published.
    go_on(one, 15)
    assert [each["state"] for each in one.ledger.versions()[count:]] == 15 * ["published"]


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


def test_one_bad_window_is_refused_and_holds_nothing(tmp_path: Path) -> None:
    one = scored(StreamWorld(tmp_path), lambda ordinal: ordinal == 13)

    go_on(one, 20)

    assert status(one.coordinator)["hold"] is None
    assert [each["state"] for each in one.ledger.versions()].count("refused") == 1


def _gauge(one: StreamWorld, name: str) -> float:
    [metric] = [each for each in MasterMetrics(one.coordinator).collect() if each.name == f"elastic_ctr_master_{name}"]
    return metric.samples[0].value
