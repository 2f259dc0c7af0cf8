from io import StringIO
from typing import Any

from rich.console import Console

from elastic_ctr.operate.cli.cluster import Pod
from elastic_ctr.operate.cli.status_text import stages
from elastic_ctr.operate.local.report import dated
from operate.cli.answers import BASE, DELTA, answers, master, serving, snapshot, transfer


def shown(
    found: dict[str, Any], errors: dict[str, str] | None = None, passes: int = 24, pods: list[Pod] | None = None
) -> str:
    out = StringIO()
    Console(file=out, width=200).print(stages(snapshot(found, errors, pods), passes=passes), highlight=False)
    return out.getvalue()


def line_of(text: str, start: str) -> str:
    [found] = [line.strip() for line in text.splitlines() if line.strip().startswith(start)]
    return " ".join(found.split())


def test_every_stage_of_a_run_is_shown() -> None:
    said = shown(answers())

    assert line_of(said, "training") == "training pass 20200401/02 is being trained (1 of 4 tasks done)"
    assert line_of(said, "tasks") == "tasks generation 2, 2 of 2 pservers serve, 1 trainers work"
    assert line_of(said, "20200401/01") == f"20200401/01 done 2/2 3,000 2 0.5000 0.7471 {DELTA} delta 4,561"
    assert line_of(said, "ledger").startswith("ledger files 6, trained 6,000, refused 6")
    assert "recovery   pserver: pserver 1 ended with -9 (3.2 s)" in said
    assert line_of(said, "live ") == f"live version {dated(DELTA)}"
    assert line_of(said, "0 ") == f"0 1 ctr-cube-s0-0 6 {BASE}: 6 up"
    assert line_of(said, "ctr-cube-s0-1") == f"ctr-cube-s0-1 6 {BASE}: 6 draining"
    assert line_of(said, "serving  ") == (
        f"serving version {DELTA} is live and answered with; 2,048 lines so far, p50 ≤ 5.0 ms, p99 ≤ 10.0 ms"
    )
    assert line_of(said, "ctr-serving-0") == f"ctr-serving-0 passed {DELTA} 8.9e-08 -"
    assert line_of(said, "freshness") == (
        "freshness events until 2020-04-01 02:00 UTC, 10 min ago; it took 7.4 s from published to live"
    )


def test_the_freshness_of_a_streams_clicks_is_shown() -> None:
    found = answers()
    found["serving"]["clickFreshness"] = {"p50": 1.24, "p90": 2.5, "p99": 3.96, "max": 6.0, "records": 1000}

    assert line_of(shown(found), "clicks") == (
        "clicks answered with after p50 1.2 s, p90 2.5 s, p99 4.0 s, at most 6.0 s (last five minutes)"
    )
    assert "answered with after" not in shown(answers())


def test_files_that_came_too_late_are_counted() -> None:
    found = answers()
    found["master"]["lateFiles"] = 3

    assert "3 files came after their pass was listed; the master's log names them" in shown(found)
    assert "came after" not in shown(answers())


def test_how_far_a_stream_is_read_and_what_its_newest_windows_are_worth_is_shown() -> None:
    found = answers()
    stream = {"url": "kafka://broker:9092/clicks", "unit": "records", "lag": 1234, "partitions": {}}
    window = {"passes": 54, "shows": 40_000, "clicks": 10_012, "auc": 0.79123, "calibration": 1.0124}
    hold = {"reason": "AUC 0.5 fell", "heldAt": 1.0, "since": "stream/00000013", "suspects": None}
    found["master"] |= {"stream": stream, "streamGone": 0, "window": window, "hold": hold}

    said = shown(found)

    assert "1,234 records of kafka://broker:9092/clicks are not read yet" in said
    assert "in the intake yet" not in said
    assert "AUC 0.7912, calibration 1.012 over the last 54 passes, 10,012 clicks" in said
    assert "publishing is held: AUC 0.5 fell" in said


def test_where_the_intake_reads_a_topic_its_lag_is_shown_beside_that_of_training() -> None:
    found = answers()
    topic: dict[str, Any] = {"url": "kafka://broker:9092/clicks", "lag": 38_000, "error": None}
    stream = {"url": "intake://ctr-intake:8310", "unit": "records", "lag": 7, "partitions": {}, "topicBefore": topic}
    found["master"] |= {"stream": stream, "streamGone": 0}

    said = shown(found)
    assert "7 records of intake://ctr-intake:8310 are not read yet" in said
    assert "38,000 records of kafka://broker:9092/clicks are not in the intake yet" in said

    topic |= {"lag": None, "error": "it does not answer"}
    assert "the intake does not read kafka://broker:9092/clicks: it does not answer" in shown(found)

    topic |= {"lag": 5, "error": "clicks/1 cannot be read"}
    said = shown(found)
    assert "the intake does not read all of kafka://broker:9092/clicks: clicks/1 cannot be read" in said
    assert "5 records of kafka://broker:9092/clicks are not in the intake yet" in said


def test_a_partition_without_a_leader_is_named() -> None:
    found = answers()
    partitions = {
        name: {"first": 0, "end": 9, "following": 9, "away": name != "clicks/0"} for name in ("clicks/1", "clicks/0")
    }
    stream = {"url": "kafka://broker:9092/clicks", "unit": "records", "lag": 7, "partitions": partitions}
    found["master"] |= {"stream": stream, "streamGone": 0}

    assert "clicks/1 cannot be read, for no broker leads it; the others are trained" in shown(found)


def test_files_of_a_followed_folder_that_are_not_read_are_named_up_to_three() -> None:
    found = answers()
    notices = [f"copy.{number} in /log is not read: it has what x has" for number in range(5)]
    stream = {"url": "file:///log?follow", "unit": "bytes", "lag": 7, "partitions": {}, "notices": notices}
    found["master"] |= {"stream": stream, "streamGone": 0}

    said = shown(found)

    assert "copy.2 in /log is not read: it has what x has" in said
    assert "copy.3" not in said
    assert "and 2 more such files, which the master's log names" in said


def test_the_quality_of_the_last_pass_is_shown_before_and_after_training() -> None:
    said = shown(answers())

    assert line_of(said, "quality") == "quality of the predictions of 20200401/01 before and after it was trained"
    assert line_of(said, "before  ") == "before 0.5000 0.4100 1.1000 0.1100 0.1000 - 0.2000 0.3000"
    assert line_of(said, "after  ") == "after 0.7471 0.3100 1.0100 0.1010 0.1000 0.0520 0.1700 0.2800"


def test_gauc_is_shown_where_the_last_pass_has_one() -> None:
    found = answers()
    [*_, last] = [each for each in found["master"]["passes"] if each["quality"]["after"]]
    last["quality"] = {**last["quality"], "after": {**last["quality"]["after"], "gauc": 0.7011}}

    assert line_of(shown(found), "after  ").startswith("after 0.7471 0.7011 0.3100")
    assert "GAUC" not in shown(answers())


def test_a_master_of_an_earlier_release_is_shown_without_what_it_does_not_report() -> None:
    passes = [
        {key: value for key, value in each.items() if key not in ("quality", "learning")} for each in master()["passes"]
    ]
    said = shown({"master": master(passes=passes)})

    assert not any(line.startswith(("quality", "learned", "table", "drift")) for line in said.splitlines())


def with_table(*tables: list[dict[str, Any]] | None) -> dict[str, Any]:
    passes = [{**each, "table": table} for each, table in zip(master()["passes"], tables, strict=True)]
    pservers = [{**each, "memoryBytes": size} for each, size in zip(master()["pservers"], (2**28, None), strict=True)]
    return master(passes=passes, pservers=pservers)


def test_the_rows_of_each_pserver_after_the_last_save_are_shown_with_what_expired_at_the_day_end_before() -> None:
    day_end: list[dict[str, Any]] = [
        {"rows": 700, "new": 50, "expired": 350, "bytes": 9000},
        {"rows": 650, "new": 40, "expired": 1200, "bytes": 8000},
    ]
    hour: list[dict[str, Any]] = [
        {"rows": 710, "new": 10, "expired": 0, "bytes": 9100},
        {"rows": 1650, "new": None, "expired": 0, "bytes": None},
    ]
    said = shown({"master": with_table(day_end, hour, None)})

    assert line_of(said, "table") == (
        "table rows after the save of 20200401/01: new since the save before, expired by its shrink"
    )
    assert line_of(said, "pserver") == "pserver rows new expired checkpoint bytes memory bytes"
    assert line_of(said, "0  ") == "0 710 10 0 9,100 268,435,456"
    assert line_of(said, "1  ") == "1 1,650 - 0 - -"
    assert line_of(said, "all") == "all 2,360 - 0 - -"
    assert line_of(said, "1,550 rows") == "1,550 rows expired at the day end of 20200401/00"


def test_one_line_says_how_the_last_pass_was_learned() -> None:
    assert line_of(shown(answers()), "learned") == (
        "learned pass 20200401/01 in 2 epochs of batches of 128, 512, 300 records held out, logits shifted by +0.0125, "
        "the model's offset is -2.2000"
    )


def test_versions_that_the_master_refused_are_named_the_last_three() -> None:
    versions = [{"id": number, "pass": 1, "state": "refused", "reason": f"AUC 0.{number}"} for number in range(1, 6)]

    said = shown({"master": master(versions=[*versions, {"id": 9, "pass": 2, "state": "published", "reason": ""}])})

    assert [" ".join(line.split()) for line in said.splitlines() if line.startswith("refused")] == [
        f"refused version {number}: AUC 0.{number}" for number in (3, 4, 5)
    ]


def test_a_training_that_stands_still_is_shown_with_the_reasons() -> None:
    stopped = {"pass": "20200401/02", "state": "stopped", "epoch": 1, "reason": "7 of 100 lines are refused"}
    pservers = [{"index": 0, "serving": False, "error": "the disk is full"}]
    said = shown(
        {
            "master": master(
                current=stopped, waitsFor="20200401/03/donefile", pservers=pservers, error="no store", handover="a"
            )
        }
    )

    for reason in (
        "training a was replaced",
        "waits for 20200401/03/donefile",
        "7 of 100 lines are refused",
        "no store",
        "0: the disk is full",
    ):
        assert reason in said


def test_a_version_on_its_way_says_what_it_waits_for() -> None:
    candidate = {"version": 9, "waitsFor": ["2 partitions have fewer than 1 holders: 3, 5"]}
    building = {"version": 10, "stage": "building", "partitionsDone": 3, "partitions": 12, "error": None}

    said = shown({"transfer": transfer(live=None, candidate=candidate, building=building, listening=True)})

    assert line_of(said, "live  ") == "live none is live yet, cube-transfer listens for what pods carry"
    assert "9 is loaded and validated, waits for: 2 partitions have fewer than 1 holders: 3, 5" in said
    assert "version 10 is built (building): 3 of 12 partitions" in said
    assert line_of(said, "ctr-serving-0") == f"ctr-serving-0 - {DELTA} - -"


def test_refusals_paused_promotion_and_problems_are_shown() -> None:
    said = shown(
        {
            "transfer": transfer(
                promotionPaused=True, refused={"8": "ctr-serving-0: sample 3 differs"}, problems=["the store is gone"],
                building={"version": 9, "stage": "failed", "partitionsDone": 0, "partitions": 0, "error": "no base"},
                published=list(range(1, 21)), skipped=[4], abandoned=[5],
            ),
            "serving": serving(lastRefusal="8: sample 3 differs", p50Seconds=None, version=None,
                               transfer={"url": "", "error": "cube-transfer is silent"}),
        },
        {"master": "http://ctr-master:8701/status does not answer"},
    )  # fmt: skip

    assert "promotion is paused: nothing newer goes live until `elastic-ctr rollback --resume`" in said
    assert "8 is refused: ctr-serving-0: sample 3 differs" in said
    assert "version 9 is not built: no base" in said
    assert "published: 20, the last are 13, 14, 15, 16, 17, 18, 19, 20" in said
    assert line_of(said, "problem    the") == "problem the store is gone"
    assert line_of(said, "silent") == "silent http://ctr-master:8701/status does not answer"
    assert "last refusal: 8: sample 3 differs" in said
    assert "cube-transfer is silent" in said
    assert "2,048 lines so far\n" in said


def test_a_shard_without_a_pod_and_a_run_without_serving_are_shown() -> None:
    shards = [{"shard": 0, "up": False, "pods": []}]

    said = shown({"transfer": transfer(shards=shards, readers=[], eventTimeMax=None, freshnessSeconds=None)})

    assert line_of(said, "0 ") == "0 0 - - - no pod is up"
    assert line_of(said, "serving") == "serving no pod reports to cube-transfer"
    assert line_of(said, "freshness") == "freshness nothing is known yet"


def test_pods_that_are_not_ready_are_named() -> None:
    def pod(name: str, component: str, state: str, *, ready: bool = False, going: bool = False) -> Pod:
        return Pod(name, component, state, state, ready, going, 0, (), ())

    pods = [
        pod("ctr-master-0", "master", "Running", ready=True),
        pod("ctr-pserver-0", "pserver", "Pending: 0/3 nodes are available"),
        pod("ctr-trainer-0", "trainer", "Running", going=True),
    ]
    said = shown({}, pods=pods)

    assert line_of(said, "pods") == "pods master 1/1, pserver 0/1, trainer 0/1"
    assert "ctr-pserver-0 is Pending: 0/3 nodes are available\n" in said
    assert "ctr-trainer-0 is Running, terminating\n" in said


def test_ages_are_shown_in_a_unit_of_their_size() -> None:
    for seconds, told in ((5.0, "5 s ago"), (600.0, "10 min ago"), (10800.0, "3.0 h ago"), (8.64e6, "100.0 days ago")):
        assert told in shown({"transfer": transfer(freshnessSeconds=seconds)})


def test_the_columns_that_moved_most_are_shown_and_a_master_of_clicks_shows_none() -> None:
    moved = {"column": "price", "kind": "number", "psi": 0.312, "pinnedMissing": 0.01, "missing": 0.2}
    unseen = {"column": "tag", "kind": "text", "psi": None, "pinnedMissing": 0.0, "missing": 1.0}
    columns = [
        {**unseen, "pinnedUnseen": 0.0, "unseen": None},
        {**moved, "pinnedUnseen": None, "unseen": None},
        {**moved, "column": "city", "psi": 0.05, "pinnedUnseen": 0.1, "unseen": 0.4},
    ]
    of_rows = master(drift={"pass": "20200401/01", "rows": 16384, "columns": [*columns, *columns]})
    of_rows["passes"][1]["drift"] = columns

    said = shown({**answers(), "master": of_rows})

    assert line_of(said, "drift") == "drift of 6 columns in 20200401/01, by 16,384 rows; most of all:"
    assert line_of(said, "tag:") == "tag: PSI -, missing 100.0% (0.0% pinned)"
    assert line_of(said, "price:") == "price: PSI 0.312, missing 20.0% (1.0% pinned)"
    assert line_of(said, "city:") == "city: PSI 0.050, missing 20.0% (1.0% pinned), unseen 40.0% (10.0% pinned)"
