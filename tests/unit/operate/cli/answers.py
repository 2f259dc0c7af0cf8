"""What roles answer to /status: two hours are trained, the second version is live on two shards."""

from typing import Any

from elastic_ctr.operate.cli.cluster import Pod
from elastic_ctr.operate.cli.snapshot import Snapshot
from elastic_ctr.runtime.status.master_status import TrainingStatus
from elastic_ctr.runtime.status.serving_status import ServingStatus
from elastic_ctr.runtime.status.transfer_status import ReleaseStatus

BASE, DELTA = 1795252709, 1795252716
QUALITY = {
    "before": {
        "shows": 3000.0, "clicks": 300.0, "auc": 0.5, "logloss": 0.41, "predictedCtr": 0.11, "observedCtr": 0.1,
        "calibration": 1.1, "bucketError": None, "mae": 0.2, "rmse": 0.3,
    },
    "after": {
        "shows": 3000.0, "clicks": 300.0, "auc": 0.7471, "logloss": 0.31, "predictedCtr": 0.101, "observedCtr": 0.1,
        "calibration": 1.01, "bucketError": 0.052, "mae": 0.17, "rmse": 0.28,
    },
}  # fmt: skip


def _pass(name: str, version: int | None, kind: str | None, **changes: Any) -> dict[str, Any]:
    return {
        "pass": name, "ordinal": 1 + int(name[-2:]), "state": "done", "epoch": 1, "reason": "", "records": 3000, "refused": 2, "ignored": 0,
        "padding": 0, "repeated": 0, "parked": 0, "tasks": 2, "tasksDone": 2, "aucBefore": 0.5, "auc": 0.5988,
        "learning": {"epochs": 2, "batchSizes": [128, 512], "heldOut": 300, "losses": [0.69, 0.5, 0.41], "shift": 0.0125},
        "quality": {"before": None, "after": None}, "trainedAt": 1795252709.5, "doneAt": 1795252715.8, "seconds": {}, "version": version, "kind": kind, "keys": 4561,
        **changes,
    }  # fmt: skip


def master(**changes: Any) -> dict[str, Any]:
    return {
        "generation": 2, "ready": True, "finished": False,
        "pservers": [{"index": 0, "serving": True, "error": ""}, {"index": 1, "serving": True, "error": ""}],
        "trainers": [{"id": 1, "name": "ctr-trainer-0"}],
        "current": {"pass": "20200401/02", "state": "training", "epoch": 1, "reason": ""},
        "passes": [
            _pass("20200401/00", BASE, "base"),
            _pass("20200401/01", DELTA, "delta", auc=0.7471, quality=QUALITY),
            _pass("20200401/02", None, None, state="training", tasksDone=1, tasks=4, auc=None, keys=0),
        ],
        "versions": [], "offset": -2.2, "curves": [],
        "ledger": {"files": 6, "trained": 6000, "refused": 6, "parked": 0, "repeated": 0, "records": 9000},
        "recoveries": [
            {"role": "pserver", "reason": "pserver 1 ended with -9", "seconds": 3.21, "at": 1.0},
            {"role": "trainer", "reason": "trainer 2 is silent", "seconds": None, "at": 2.0},
        ],
        "waitsFor": "", "error": "",
        **changes,
    }  # fmt: skip


def _cube_pod(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "pod": name, "address": f"{name}:8600", "draining": False, "loaded": {str(BASE): 6, str(DELTA): 6}, "errors": [],
        "secondsSinceReport": 0.6, **changes,
    }  # fmt: skip


def transfer(**changes: Any) -> dict[str, Any]:
    return {
        "role": "cube-transfer", "listening": False, "generation": 1, "revision": 9, "live": DELTA, "previous": BASE,
        "promotionPaused": False, "candidate": None, "published": [BASE, DELTA], "built": [BASE, DELTA],
        "building": {
            "version": DELTA, "stage": "done", "partitionsDone": 12, "partitions": 12, "seconds": 0.7,
            "secondsByStage": {}, "error": None, "final": False,
        },
        "next": None, "skipped": [], "abandoned": [], "refused": {}, "problems": [],
        "shards": [
            {"shard": 0, "up": True, "pods": [_cube_pod("ctr-cube-s0-0"), _cube_pod("ctr-cube-s0-1", draining=True)]},
            {"shard": 1, "up": True, "pods": [_cube_pod("ctr-cube-s1-0")]},
        ],
        "readers": [
            {
                "pod": "ctr-serving-0", "validated": [BASE, DELTA], "refused": {}, "pinned": [DELTA],
                "maxAbsDiff": {str(DELTA): 8.9e-08}, "secondsSinceReport": 0.3,
            }
        ],
        "eventTimeMax": 1585706400,
        "freshnessSeconds": 600.0,
        "versions": {str(DELTA): {"secondsToLive": 7.392}},
        **changes,
    }  # fmt: skip


def serving(**changes: Any) -> dict[str, Any]:
    return {
        "ready": True, "stage": f"version {DELTA} is live and answered with", "version": DELTA, "live": DELTA,
        "candidate": None, "eventTimeMax": 1585706400, "freshnessSeconds": 600.0, "clickFreshness": None, "validated": {}, "refused": {},
        "lastRefusal": None, "transfer": {"url": "http://ctr-cube-transfer:8300", "error": None}, "requests": 5,
        "rows": 2048, "p50Seconds": 0.005, "p99Seconds": 0.01, "workers": [], "workerRestarts": 0,
        "address": "0.0.0.0:8400",
        **changes,
    }  # fmt: skip


def answers() -> dict[str, Any]:
    return {"master": master(), "transfer": transfer(), "serving": serving()}


def snapshot(found: dict[str, Any], errors: dict[str, str] | None = None, pods: list[Pod] | None = None) -> Snapshot:
    """The snapshot of these answers by role."""
    return Snapshot(
        TrainingStatus.model_validate(found["master"]) if "master" in found else None,
        ReleaseStatus.model_validate(found["transfer"]) if "transfer" in found else None,
        ServingStatus.model_validate(found["serving"]) if "serving" in found else None,
        pods,
        errors=errors or {},
    )
