"""What the master shows of itself: stages of passes, tasks, recoveries, members."""

from collections.abc import Mapping
from typing import Any

from elastic_ctr.master.coordinator import Coordinator
from elastic_ctr.master.ledger_rows import PassRow

_SHOWN_PASSES = 1000


def status(coordinator: Coordinator) -> dict[str, Any]:
    """One consistent look at the ledger and the members, in as many queries for a thousand passes as for one."""
    with coordinator.locked():
        ledger = coordinator.reading()
        versions = {row["id"]: row for row in ledger.versions()}
        shown = ledger.passes()[-_SHOWN_PASSES:]
        current = next((each for each in shown if each.state != "done"), None)
        counts = ledger.counts_by_pass(shown[0].ordinal if shown else 1)
        seconds = ledger.seconds_by_pass()
        generation = coordinator.generation
        return {
            "generation": generation,
            "ready": coordinator.initialised,
            "finished": coordinator.finished,
            "pservers": [
                {"index": index, "serving": one.serving and one.generation == generation, "error": one.error}
                for index, one in coordinator.pservers.items()
            ],
            "handover": coordinator.handover,
            "baseDue": str(ledger.get("base_due") or ""),
            "trainers": [{"id": number, "name": name} for number, (name, _) in sorted(coordinator.trainers().items())],
            "current": None
            if current is None
            else {"pass": current.id, "state": current.state, "epoch": current.epoch, "reason": current.reason},
            "passes": [_pass(each, counts[each.ordinal], seconds.get(each.ordinal, {}), versions) for each in shown],
            "versions": list(versions.values()),
            "ledger": coordinator.counted(),
            "damagedCheckpoints": [
                {"name": each["name"], "reason": each["damaged"]} for each in ledger.damaged_checkpoints()
            ],
            "recoveries": ledger.recoveries(),
        }


def _pass(
    each: PassRow, counts: Mapping[str, int], seconds: Mapping[str, float], versions: Mapping[int, dict[str, Any]]
) -> dict[str, Any]:
    version = versions.get(each.version) if each.version is not None else None
    return {
        "pass": each.id,
        "ordinal": each.ordinal,
        "state": each.state,
        "epoch": each.epoch,
        "reason": each.reason,
        "records": counts["records"],
        "refused": counts["refused"],
        "ignored": counts["ignored"],
        "padding": counts["padding"],
        "repeated": counts["repeated"],
        "parked": counts["parked_tasks"],
        "tasks": counts["tasks"],
        "tasksDone": counts["done"],
        "aucBefore": each.auc_before,
        "auc": each.auc,
        "trainedAt": each.trained_at,
        "doneAt": each.done_at,
        "seconds": seconds,
        "version": each.version,
        "kind": version["kind"] if version else None,
        "keys": version["keys"] if version else 0,
    }
