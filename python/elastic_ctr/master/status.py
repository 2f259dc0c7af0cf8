"""What the master shows of itself: stages of passes, tasks, recoveries, members."""

from typing import Any

from elastic_ctr.master.coordinator import Coordinator

_SHOWN_PASSES = 1000


def status(coordinator: Coordinator) -> dict[str, Any]:
    """One consistent look at the ledger and the members."""
    with coordinator.locked():
        ledger = coordinator.reading()
        versions = {row["id"]: row for row in ledger.versions()}
        shown = ledger.passes()[-_SHOWN_PASSES:]
        current = next((each for each in shown if each.state != "done"), None)
        generation = coordinator.generation
        return {
            "generation": generation,
            "ready": coordinator.initialised,
            "finished": coordinator.finished,
            "pservers": [
                {"index": index, "serving": one.serving and one.generation == generation, "error": one.error}
                for index, one in coordinator.pservers.items()
            ],
            "trainers": [{"id": number, "name": name} for number, (name, _) in sorted(coordinator.trainers().items())],
            "current": None
            if current is None
            else {"pass": current.id, "state": current.state, "epoch": current.epoch, "reason": current.reason},
            "passes": [_pass(coordinator, each, versions) for each in shown],
            "versions": list(versions.values()),
            "ledger": coordinator.counted(),
            "recoveries": ledger.recoveries(),
        }


def _pass(coordinator: Coordinator, each: Any, versions: dict[int, dict[str, Any]]) -> dict[str, Any]:
    counts = coordinator.reading().counts(each.ordinal)
    version = versions.get(each.version) if each.version is not None else None
    return {
        "pass": each.id,
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
        "seconds": coordinator.reading().fact(f"seconds-{each.ordinal}", {}),
        "version": each.version,
        "kind": version["kind"] if version else None,
        "keys": version["keys"] if version else 0,
    }
