"""Answers of master and cube-transfer for a run of any length, and with text that would break a page if it were not escaped."""

import math
from typing import Any

from elastic_ctr.operate.report.document import Report
from elastic_ctr.runtime.status.master_status import TrainingStatus
from elastic_ctr.runtime.status.serving_status import FreshnessQuantiles
from elastic_ctr.runtime.status.transfer_status import ReleaseStatus

HOSTILE = '</td><script>document.title="owned"</script><img src=x onerror=alert(1)>"\'&\u202e\x00\ud800'


def _quality(auc: float, logloss: float) -> dict[str, Any]:
    return {
        "shows": 3000.0, "clicks": 300.0, "auc": auc, "logloss": logloss, "predictedCtr": 0.1, "observedCtr": 0.1,
        "calibration": 1.03, "bucketError": None, "mae": 0.2, "rmse": 0.3,
    }  # fmt: skip


def _curve(power: float) -> dict[str, Any]:
    deciles = [{"predictedCtr": 0.01 * place**2, "observedCtr": 0.009 * place**2} for place in range(1, 11)]
    return {"deciles": deciles, "roc": [round((at / 100) ** power, 4) for at in range(101)]}


def _pass(number: int, name: str, **changes: Any) -> dict[str, Any]:
    auc = 0.6 + 0.2 * (1 - math.exp(-number / 50))
    return {
        "pass": name, "ordinal": number, "state": "done", "epoch": 2, "reason": "", "records": 120_000 + number,
        "refused": 12, "ignored": 0, "padding": 0, "repeated": 0, "tasks": 4, "parked": 0, "tasksDone": 4,
        "aucBefore": auc, "auc": auc + 0.05, "quality": {"before": _quality(auc, 0.41), "after": _quality(auc + 0.05, 0.37)},
        "learning": {"epochs": 2, "batchSizes": [128, 512], "heldOut": 12_000, "losses": [0.41, 0.39, 0.38], "shift": -0.0123},
        "trainedAt": 1795252709.5 + 60 * number, "doneAt": 1795252715.8 + 60 * number,
        "seconds": {
            "train": 9.5 + number % 7, "denseExport": 0.48, "base": 1.3, "checkpoint": 0.9, "checkpointUpload": 0.07,
            "exportUpload": 1.5, "score": 0.13,
        },
        "table": [
            {"rows": 1_000_000 + number, "new": 41_000, "expired": 40_000 + at, "bytes": 88_000_000} for at in range(2)
        ],
        "drift": None, "version": 1795252000 + number, "kind": "delta", "keys": 4561, **changes,
    }  # fmt: skip


def _version(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "id": 1795252000 + number, "kind": "base" if number == 1 else "delta", "base": 1795252001,
        "parent": None if number == 1 else 1795251999 + number, "pass": number, "state": "published", "keys": 4561,
        "at": 1795252715.0 + 60 * number, "reason": "", **changes,
    }  # fmt: skip


def answers(passes: int = 6, *, say: str = "the reason", name: str = "") -> dict[str, Any]:
    """`say`: every reason in it. `name`: follows the name of each pass."""
    count = passes
    hours = [f"2020{1 + (hour // 672):02}{1 + (hour // 24) % 28:02}/{hour % 24:02}{name}" for hour in range(count + 1)]
    shown = [_pass(number, hours[number - 1]) for number in range(1, count + 1)]
    stopped = _pass(
        count + 1, hours[count], state="stopped", reason=say, auc=None, version=None, seconds={say[:80]: 2.0}
    )
    versions = [_version(number) for number in range(1, count + 1)]
    if count > 3:
        versions[2] |= {"state": "refused", "reason": say}
    lines = count * 120_012
    return {
        "master": {
            "generation": 2, "ready": True, "finished": False, "offset": -2.2, "passes": [*shown, stopped],
            "curves": [{"pass": each["pass"], "before": _curve(0.5), "after": _curve(0.3)} for each in shown[-24:]],
            "current": {"pass": stopped["pass"], "state": "stopped", "epoch": 1, "reason": say},
            "versions": versions, "waitsFor": say, "error": say, "baseDue": "", "damagedCheckpoints": [], "drift": None,
            "ledger": {
                "files": 4 * count, "records": lines, "trained": lines - 12_012 * count, "refused": 12 * count, "parked": 0,
                "heldOut": 12_000 * count, "repeated": 3, "rolledBack": 7,
            },
            "recoveries": [
                {"role": say, "reason": say, "at": 1795252709.0, "seconds": 3.2, "rolled_back": 7},
                {"role": "trainer", "reason": "trainer 2 is silent", "at": 1795252999.0, "seconds": None, "rolled_back": 0},
            ],
            "pservers": [
                {"index": index, "serving": True, "error": say, "memoryBytes": 1_300_000_000} for index in range(2)
            ],
            "trainers": [], "handover": None,
        },
        "transfer": {
            "live": 1795252000 + count, "previous": 1795251999 + count, "promotionPaused": True, "candidate": None,
            "refused": {"1795252002": say}, "problems": [say], "shards": [],
            "versions": {str(1795252000 + number): {"secondsToLive": 7.39} for number in range(max(1, count - 63), count + 1)},
        },
    }  # fmt: skip


def report_of(source: str, found: dict[str, Any]) -> Report:
    serving = found.get("serving")
    return Report(
        source,
        TrainingStatus.model_validate(found["master"]),
        ReleaseStatus.model_validate(found["transfer"]) if "transfer" in found else None,
        None if serving is None else FreshnessQuantiles.model_validate(serving["clickFreshness"]),
    )
