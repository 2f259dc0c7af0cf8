"""The quality of a pass from the trainers' histograms to the ledger, the status, the metrics and the manifest; and versions that
are refused for it.
"""

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from elastic_ctr.config.training_settings import MasterConfig, QualityLoss
from elastic_ctr.operate.local.report import build
from elastic_ctr.store.versions.manifest import Quality, VersionManifest
from elastic_ctr.store.versions.published_files import published_versions, read_version
from elastic_ctr.training.control import control_pb2 as control
from elastic_ctr.training.master.calendar.quality_gate import (
    auc_error,
    calibration_error,
    refuse_equal_scores,
    refuse_worse,
    refuse_worse_than_constant,
)
from elastic_ctr.training.master.generations.checkpoint_files import PublishRefused
from elastic_ctr.training.master.ledger.figure_table import Expected
from elastic_ctr.training.master.ledger.ledger import Ledger
from elastic_ctr.training.master.ledger.rows import PassRow
from elastic_ctr.training.master.metrics import MasterMetrics
from elastic_ctr.training.master.training_status import status
from elastic_ctr.training.model.evaluation import quality_of_scores
from elastic_ctr.training.model.grouped_auc import GroupSample, hashed, merged, rows_of
from quality_oracles import histogram_of_scores
from training.master.world import World, data_of, world


class Score(NamedTuple):
    """Of 4,000 impressions of a task, half of them clicked: how far clicked ones are above the others, and a bias of all."""

    apart: float = 2.0
    bias: float = 0.0

    def histograms(self) -> tuple[bytes, bytes]:
        positives, negatives = histogram_of_scores(*self.lines())
        return positives.tobytes(), negatives.tobytes()

    def lines(self) -> tuple[Any, Any, Any]:
        """Probability, click, show."""
        random, click = np.random.default_rng(1), np.arange(4000) % 2
        logit = random.normal(0, 1, 4000) + self.apart * (click - 0.5) + self.bias
        return 1 / (1 + np.exp(-logit)), click, np.ones(4000)

    def quality(self, times: int = 1) -> Quality:
        probability, click, show = self.lines()
        found = quality_of_scores(probability, times * click, times * show)
        assert found is not None
        return found


Scores = Callable[[str, str], Score]
"""By pass and moment, `before` or `after`."""


def scored(one: World, scores: Scores) -> World:
    """Trainers that report these scores."""
    fill = one.fill

    def filled(task: control.Task, result: control.TaskResult) -> None:
        fill(task, result)
        if result.positives:
            moment = "before" if task.phase == control.CHECK else "after"
            result.positives, result.negatives = scores(task.pass_id, moment).histograms()

    one.fill = filled  # type: ignore[method-assign]
    return one


def better(_: str, moment: str) -> Score:
    return Score(apart=1.0 if moment == "before" else 2.0)


# -- where it is seen --------------------------------------------------------------------------------------------------


def test_the_status_has_the_figures_of_every_pass_and_the_curves_of_the_last(tmp_path: Path) -> None:
    one = scored(World(tmp_path), better)
    one.finish()

    shown = status(one.coordinator).to_dict()

    before, after = (better("", moment).quality(times=2) for moment in ("before", "after"))
    for each in shown["passes"]:
        assert each["quality"]["before"]["auc"] == each["aucBefore"] == pytest.approx(before.auc, abs=1e-3)
        assert each["quality"]["after"]["auc"] == each["auc"] == pytest.approx(after.auc, abs=1e-3)
        # The version is shifted to it.
        assert each["quality"]["after"]["calibration"] == pytest.approx(1, rel=0.001)
        assert each["quality"]["after"]["logloss"] == pytest.approx(after.logloss, abs=1 / 256)
        assert each["quality"]["after"]["shows"] == 8000
        assert "roc" not in each["quality"]["after"]
    assert [each["pass"] for each in shown["curves"]] == ["20200401/00", "20200401/01"]
    last = shown["curves"][-1]["after"]
    assert last["roc"] == pytest.approx(after.roc, abs=0.01)
    assert [each["observedCtr"] for each in last["deciles"]] == pytest.approx(
        [each.observed_ctr for each in after.deciles], abs=0.02
    )


def test_a_long_run_shows_the_curves_of_its_last_day(tmp_path: Path) -> None:
    one = scored(World(tmp_path, data_of(end="20200402/01")), better)
    one.until(lambda: one.coordinator.finished, rounds=4000)

    shown = status(one.coordinator).to_dict()

    assert len(shown["passes"]) == 26
    assert [each["pass"] for each in shown["curves"]] == [each["pass"] for each in shown["passes"][-24:]]
    assert all(each["quality"]["before"] for each in shown["passes"])


def test_a_pass_without_records_has_no_quality(tmp_path: Path) -> None:
    one = World(tmp_path)
    one.records = dict.fromkeys([f"20200401/01/{name}" for name in one.files], 0)
    one.finish()

    shown = status(one.coordinator).to_dict()

    assert shown["passes"][1]["records"] == 0
    assert shown["passes"][1]["quality"] == {"before": None, "after": None}
    assert len(shown["curves"]) == 1


def test_the_metrics_are_of_the_last_pass_that_is_done(tmp_path: Path) -> None:
    one = scored(World(tmp_path), better)
    one.finish()

    gauges = {metric.name: metric for metric in MasterMetrics(one.coordinator).collect()}

    values = {
        (name, sample.labels["moment"]): sample.value
        for name in ("auc", "logloss", "calibration", "bucket_error", "mae", "rmse", "predicted_ctr", "observed_ctr")
        for sample in gauges[f"elastic_ctr_master_{name}"].samples
    }
    [_, last] = status(one.coordinator).to_dict()["passes"]
    assert len(values) == 16
    assert values["auc", "before"] == last["aucBefore"]
    assert values["calibration", "after"] == last["quality"]["after"]["calibration"]
    assert values["observed_ctr", "before"] == 0.5


USERS = np.array([1, 1, 2, 2, 3, 3], np.uint64)
# Of user 1 the click is on top, of user 2 below, and user 3 has none.
CLICKS, BUCKETS_OF = [1, 0, 1, 0, 0, 0], np.array([9, 5, 3, 4, 1, 2])


def grouped(one: World, slot: str = "") -> World:
    """Trainers that group by the slot of the task, or by this one."""
    fill = one.fill

    def filled(task: control.Task, result: control.TaskResult) -> None:
        fill(task, result)
        if task.group == (slot or task.group) and task.phase in (control.CHECK, control.TRAIN, control.EVALUATE):
            half = slice(0, 3) if task.path.endswith("0") else slice(3, 6)
            clicks = np.array(CLICKS[half])
            rows = rows_of(hashed(USERS[half]), BUCKETS_OF[half], clicks, 1 - clicks)
            result.group, result.groups = task.group, merged([GroupSample(0, rows)]).to_bytes()

    one.fill = filled  # type: ignore[method-assign]
    return one


def test_a_pass_has_the_gauc_of_groups_that_its_tasks_share(tmp_path: Path) -> None:
    one = grouped(World(tmp_path, data_of(group="a")))
    one.files = ["part-0", "part-1"]
    one.finish()

    shown = status(one.coordinator).to_dict()["passes"][-1]["quality"]

    # The sample of user 2 is in two tasks.
    assert [(shown[moment]["gauc"], shown[moment]["groups"]) for moment in ("before", "after")] == [(0.5, 2)] * 2
    gauges = {metric.name: metric for metric in MasterMetrics(one.coordinator).collect()}
    assert {sample.value for sample in gauges["elastic_ctr_master_gauc"].samples} == {0.5}
    assert {task.group_rows for task in one.tasks if task.group} == {50_000}
    # They go when the pass is done, as the histograms do.
    [kept] = one.ledger.one("select count(*) from groups")
    assert kept == 0


@pytest.mark.parametrize(("setting", "of_trainers"), [("", ""), ("a", "b")])
def test_a_pass_without_groups_of_all_its_tasks_has_no_gauc(tmp_path: Path, setting: str, of_trainers: str) -> None:
    one = World(tmp_path, data_of(group=setting))
    (grouped(one, of_trainers) if of_trainers else one).finish()

    shown = status(one.coordinator).to_dict()["passes"][-1]["quality"]

    assert [(shown[moment]["gauc"], shown[moment]["groups"]) for moment in ("before", "after")] == [(None, None)] * 2
    assert shown["after"]["auc"] is not None


def test_a_pass_whose_group_changes_under_way_has_no_gauc_after_training(tmp_path: Path) -> None:
    one = grouped(World(tmp_path, data_of(end="20200401/00", group="a")), "a")
    one.files = ["part-0"]
    one.until(lambda: any(task.phase == control.TRAIN for task in one.tasks))
    one.data = data_of(end="20200401/00", group="b")
    one.start_master()
    one.finish()

    quality = status(one.coordinator).to_dict()["passes"][0]["quality"]

    assert quality["before"]["gauc"] == 1
    assert quality["after"]["gauc"] is None


def test_groups_by_a_slot_of_before_a_restart_are_not_taken_for_those_of_the_new_one(tmp_path: Path) -> None:
    one = grouped(World(tmp_path, data_of(end="20200401/00", group="b")))
    one.files = ["part-0"]
    fill = one.fill

    def late(task: control.Task, result: control.TaskResult) -> None:
        # Leased from the master of before, whose slot was another one.
        task.group = "a"
        fill(task, result)

    one.fill = late  # type: ignore[method-assign]
    one.finish()

    quality = status(one.coordinator).to_dict()["passes"][0]["quality"]

    assert [quality[moment]["gauc"] for moment in ("before", "after")] == [None, None]


def test_a_manifest_has_the_quality_of_its_pass_and_an_older_one_has_none(tmp_path: Path) -> None:
    one = scored(World(tmp_path), better)
    one.finish()

    manifests = [read_version(one.store, version) for version in published_versions(one.store)]

    for each, shown in zip(manifests, status(one.coordinator).to_dict()["passes"], strict=True):
        assert each.quality is not None
        assert each.quality.before is not None
        assert each.quality.after is not None
        assert (each.quality.before.auc, each.quality.after.auc) == (shown["aucBefore"], shown["auc"])
        assert len(each.quality.after.roc) == 101
    older = json.loads(manifests[0].to_json())
    del older["quality"]
    assert VersionManifest.model_validate_json(json.dumps(older)).quality is None


def test_the_quality_before_training_outlives_a_rollback_and_that_after_it_does_not(tmp_path: Path) -> None:
    ledger = scored(one := World(tmp_path), better).ledger
    one.finish()

    ledger.roll_back(1)

    assert ledger.figures.quality(2).before is not None
    assert ledger.figures.quality(2).after is None
    assert ledger.figures.quality(1).after is not None


def test_very_old_passes_have_their_figures_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elastic_ctr.training.master.ledger.figure_table.KEPT_CURVES", 2)
    one = scored(World(tmp_path, data_of(end="20200401/03")), better)

    one.finish()

    found = [one.ledger.figures.quality(each.ordinal) for each in one.ledger.passes.all()]
    assert [bool(each.before and each.before.roc) for each in found] == [False, False, True, True]
    assert [bool(each.after and each.after.deciles) for each in found] == [False, False, True, True]
    assert all(each.after and each.after.auc for each in found)


def test_a_ledger_of_an_earlier_release_goes_on(tmp_path: Path) -> None:
    one = World(tmp_path)
    one.until_phase(control.TRAIN)
    one.ledger.do("drop table qualities")
    one.ledger.do("pragma user_version = 0")
    ledger = Ledger(Path(one.ledger.one("pragma database_list")[2]))

    assert ledger.figures.since(1) == {}
    assert ledger.figures.expected(1, 3) is None


# -- versions that are refused -----------------------------------------------------------------------------------------


def states(one: World) -> list[tuple[str, str]]:
    return [(each["kind"], each["state"]) for each in one.ledger.saves.versions()]


def apart_at(*passes: str, score: Score) -> Scores:
    """From the first of these passes on training has come apart; with the last of them it has recovered."""

    def scores(name: str, moment: str) -> Score:
        if name in passes and (moment == "after" or name != passes[0]):
            return score
        return better(name, moment)

    return scores


def test_a_version_that_has_come_apart_is_refused_until_training_has_recovered(tmp_path: Path) -> None:
    bad = apart_at("20200401/01", "20200401/02", score=Score(apart=-1.0))
    one = scored(World(tmp_path, data_of(end="20200401/03")), bad)

    one.finish()

    assert states(one) == [("base", "published"), ("delta", "refused"), ("base", "refused"), ("base", "published")]
    first, second, third, _ = one.ledger.saves.versions()
    assert f"of version {first['id']} over pass 20200401/01 before training" in second["reason"]
    assert "maxQualityLoss.auc 0.1" in second["reason"]
    # Still against the version that is live, though the table is as bad before this pass as after it.
    assert f"of version {first['id']} over pass 20200401/01 before training" in third["reason"]
    assert published_versions(one.store) == [first["id"], one.ledger.saves.versions()[3]["id"]]
    assert len(one.ledger.saves.checkpoints()) == 2
    report = build(status(one.coordinator), None, {}, [])
    assert [(each["version"], each["pass"]) for each in report["refused"]] == [
        (second["id"], "20200401/01"), (third["id"], "20200401/02"),
    ]  # fmt: skip
    assert [each["version"] for each in report["passes"]] == [
        first["id"],
        None,
        None,
        one.ledger.saves.versions()[3]["id"],
    ]


def test_a_version_with_another_calibration_is_corrected(tmp_path: Path) -> None:
    one = scored(World(tmp_path), apart_at("20200401/01", score=Score(apart=2.0, bias=5.0)))

    one.finish()

    assert states(one) == [("base", "published"), ("delta", "published")]
    assert one.ledger.figures.learning(2).shift == pytest.approx(-5, abs=0.1)


def test_a_version_with_another_calibration_is_refused_where_no_evaluation_corrects_it(tmp_path: Path) -> None:
    unevaluated = World(tmp_path, config=MasterConfig(evaluate=False))
    one = scored(unevaluated, apart_at("20200401/01", score=Score(apart=2.0, bias=5.0)))

    one.finish()

    assert states(one) == [("base", "published"), ("delta", "refused")]
    assert "calibration 1.9" in one.ledger.saves.versions()[1]["reason"]
    assert "raise master.config.maxQualityLoss.calibration" in one.ledger.saves.versions()[1]["reason"]


def test_harder_data_refuses_no_version(tmp_path: Path) -> None:
    """The pass is foretold worse by the version before it, too."""
    harder = lambda name, _: Score(apart=2.0 if name == "20200401/00" else 0.2)  # noqa: E731
    one = scored(World(tmp_path), harder)

    one.finish()

    assert states(one) == [("base", "published"), ("delta", "published")]


def test_harder_data_after_a_refusal_ends_the_refusals(tmp_path: Path) -> None:
    """Training has recovered in the next pass, whose records no version would foretell as well as those before."""

    def scores(name: str, moment: str) -> Score:
        if name == "20200401/01":
            return Score(apart=3.0 if moment == "before" else -1.0)
        return Score(apart=3.0 if name == "20200401/00" else 0.5 if moment == "before" else 1.0)

    one = scored(World(tmp_path, data_of(end="20200401/05")), scores)

    one.finish()

    assert [state for _, state in states(one)] == ["published", *["refused"] * 3, "published", "published"]


def test_a_training_that_stays_apart_is_refused_after_three_refusals_too_where_a_pass_makes_it_worse(
    tmp_path: Path,
) -> None:
    bad = ("20200401/01", "20200401/02", "20200401/03", "20200401/04")

    def scores(name: str, moment: str) -> Score:
        return Score(apart=-2.0 if name in bad and moment == "after" else 2.0)

    one = scored(World(tmp_path, data_of(end="20200401/04")), scores)

    one.finish()

    assert [state for _, state in states(one)] == ["published", *["refused"] * 4]
    assert (
        "of the same pass before training, which counts after 3 refused versions"
        in one.ledger.saves.versions()[-1]["reason"]
    )


def test_the_first_version_is_compared_with_none(tmp_path: Path) -> None:
    one = scored(World(tmp_path, data_of(end="20200401/00")), apart_at("20200401/00", score=Score(apart=0.5)))

    one.finish()

    assert states(one) == [("base", "published")]


def test_a_version_that_is_worse_than_the_click_rate_is_refused_though_it_is_the_first(tmp_path: Path) -> None:
    one = scored(World(tmp_path, data_of(end="20200401/01")), apart_at("20200401/00", score=Score(apart=-1.0)))

    one.finish()

    assert [state for _, state in states(one)] == ["refused", "published"]
    reason = one.ledger.saves.versions()[0]["reason"]
    assert "of pass 20200401/00 after training is above the 0.6931 of one probability for all rows" in reason
    assert (
        "it would rank nothing; look at the scale of the numbers (`elastic-ctr analyze` names those far from 1)"
        in reason
    )


def test_a_version_that_answers_the_same_to_every_row_is_refused(tmp_path: Path) -> None:
    one = World(tmp_path, data_of(end="20200401/00"))
    fill = one.fill

    def filled(task: control.Task, result: control.TaskResult) -> None:
        fill(task, result)
        if task.phase == control.CHECK:
            result.samples.extend(control.Sample(line=f"{key}:a", show=2, click=1) for key in range(1, 20))

    one.fill = filled  # type: ignore[method-assign]

    one.finish()

    assert states(one) == [("base", "refused")]
    assert "answers 0.5 for each of" in one.ledger.saves.versions()[0]["reason"]


def test_limits_that_are_too_high_refuse_nothing(tmp_path: Path) -> None:
    never = {"max_quality_loss": QualityLoss(auc=1, calibration=1e9)}
    one = scored(world(tmp_path, config=never), apart_at("20200401/01", score=Score(apart=0.5, bias=5.0)))

    one.finish()

    assert states(one) == [("base", "published"), ("delta", "published")]


def test_a_recovery_after_a_refusal_compares_with_the_version_it_returned_to(tmp_path: Path) -> None:
    bad = apart_at("20200401/01", score=Score(apart=-1.0))
    one = scored(World(tmp_path, data_of(end="20200401/02")), bad)
    one.until(lambda: len(one.ledger.saves.versions()) == 2)

    one.start_master()
    one.finish()

    assert states(one) == [("base", "published"), ("delta", "refused"), ("base", "published")]


# -- the arithmetic ----------------------------------------------------------------------------------------------------


def judged(live: Score, after: Score, **limits: float) -> None:
    one = PassRow(2, "20200401/01", ("20200401/01",), 0, ends_day=False)
    refuse_worse(
        one,
        after.quality(),
        Expected("of version 7 over pass 20200401/01 before training", live.quality()),
        QualityLoss(**limits),
    )


def test_a_loss_within_the_limit_and_chance_is_none() -> None:
    live, after = Score(apart=2.0), Score(apart=1.5)
    loss = (live.quality().auc or 0) - (after.quality().auc or 0)
    chance = 3 * float(np.hypot(auc_error(live.quality()), auc_error(after.quality())))

    judged(live, after, auc=loss - chance + 1e-6)
    with pytest.raises(PublishRefused, match="mend the data or lower the learning rates"):
        judged(live, after, auc=loss - chance - 1e-6)


def test_a_calibration_nearer_to_1_from_the_other_side_is_better() -> None:
    judged(Score(bias=1.0), Score(bias=-0.8), calibration=0)


def test_the_errors_are_not_below_those_of_repeated_draws() -> None:
    random, found = np.random.default_rng(2), []
    for _ in range(400):
        logit = random.normal(-2, 1, 2000)
        click = random.random(2000) < 1 / (1 + np.exp(-logit))
        quality = quality_of_scores(1 / (1 + np.exp(-logit)), click, np.ones(2000))
        assert quality is not None
        found.append((quality.auc or 0, auc_error(quality), quality.calibration or 0, calibration_error(quality)))
    aucs, auc_errors, calibrations, calibration_errors = np.array(found).T

    assert aucs.std() < auc_errors.mean() < 3 * aucs.std()
    assert calibrations.std() < calibration_errors.mean() < 3 * calibrations.std()


PASS = PassRow(2, "20200401/01", ("20200401/01",), 0, ends_day=False)


def test_the_quality_of_a_constant_is_no_worse_than_that_of_a_constant() -> None:
    quality = quality_of_scores(np.full(5000, 0.02), np.arange(5000) < 100, np.ones(5000))

    refuse_worse_than_constant(PASS, quality, late_clicks=False)


@pytest.mark.parametrize(
    ("clicks", "shows", "late"), [(99, 20_000, False), (20_000, 20_099, False), (10_000, 20_000, True)], ids=str
)
def test_passes_of_few_clicks_and_of_late_ones_are_compared_with_no_constant(
    clicks: int, shows: int, late: bool
) -> None:
    quality = quality_of_scores(np.full(shows, 0.2), np.arange(shows) < clicks, np.ones(shows))

    refuse_worse_than_constant(PASS, quality, late_clicks=late)
    refuse_worse_than_constant(PASS, None, late_clicks=False)


@pytest.mark.parametrize("rate", [0.003, 0.05, 0.5])
def test_an_untrained_model_of_clicks_that_nothing_foretells_is_not_refused(rate: float) -> None:
    """Its logits wander about those of the rate, as the last steps have left them, however few or many rows there are."""
    dice = np.random.default_rng(1)
    for rows in (300, 3_000, 30_000) * 20:
        clicks = dice.random(rows) < rate
        logits = np.log(rate / (1 - rate)) + dice.normal(0, 0.3, rows)
        quality = quality_of_scores(1 / (1 + np.exp(-logits)), clicks, np.ones(rows))
        refuse_worse_than_constant(PASS, quality, late_clicks=False)


def samples(rows: int, clicks: int) -> list[tuple[str, int, int]]:
    return [(f"row {row}", 1, int(row < clicks)) for row in range(rows)]


@pytest.mark.parametrize(
    ("scores", "given", "refused"),
    [
        ([0.0] * 20, samples(20, 5), True),
        ([1.0] * 20, samples(20, 5), True),
        ([0.3, 0.30000001] * 10, samples(20, 5), True),
        ([0.3, 0.3001] * 10, samples(20, 5), False),
        ([0.0] * 9, samples(9, 5), False),
        ([0.3] * 20, samples(1, 1) * 20, False),
        ([0.3] * 20, samples(20, 0), False),
        ([0.3] * 20, samples(20, 20), False),
    ],
    ids=[
        "zeros", "ones", "rounding", "small differences", "few rows", "equal rows", "no click", "clicks alone",
    ],
)  # fmt: skip
def test_equal_scores_are_refused_of_different_rows_with_and_without_clicks(
    scores: list[float], given: list[tuple[str, int, int]], refused: bool
) -> None:
    with pytest.raises(PublishRefused, match="for each of 20 different rows") if refused else nullcontext():
        refuse_equal_scores(PASS, np.array(scores, np.float32), given)


def test_few_impressions_prove_nothing() -> None:
    one = PassRow(2, "20200401/01", ("20200401/01",), 0, ends_day=False)
    clicks, shows = np.array([0, 0, 1, 1]), np.ones(4)
    right, wrong = (quality_of_scores(np.array([0.1, 0.2, 0.3, 0.9])[::turn], clicks, shows) for turn in (1, -1))
    assert right is not None
    assert wrong is not None
    assert (right.auc, wrong.auc) == (1, 0)

    refuse_worse(one, wrong, Expected("of version 7", right), MasterConfig().max_quality_loss)


def test_without_records_or_a_version_before_there_is_nothing_to_compare() -> None:
    one = PassRow(2, "20200401/01", ("20200401/01",), 0, ends_day=False)

    refuse_worse(one, None, Expected("of version 7", Score().quality()), MasterConfig().max_quality_loss)
    refuse_worse(one, Score(apart=-3).quality(), None, MasterConfig().max_quality_loss)
