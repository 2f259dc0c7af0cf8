"""A pipeline that follows a stream: its settings, its lines, and what table and cube have of them."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from elastic_ctr.cube.client.blocking import BlockingCubeClient
from elastic_ctr.features.synthetic import PRESETS, Truth
from elastic_ctr.operate.local.endpoints import predict
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions.manifest import CheckpointManifest
from elastic_ctr.store.versions.published_files import read_checkpoint, read_version
from elastic_ctr.training.export.published import layout_of
from elastic_ctr.training.export.table_text import Vectors, parse_rows
from pipeline.running import Run, values_for

TRUTH = Truth(PRESETS["easy"], seed=3)
SLOTS = list(TRUTH.slots)
CHECKPOINT_SECONDS = 20


def clicks(rows: int, seed: int) -> list[bytes]:
    return TRUTH.text(TRUTH.draw(rows, np.random.default_rng(seed))).splitlines()


def stream_values(url: str) -> dict[str, Any]:
    values = values_for(
        Path("/"),
        SLOTS,
        "earliest",
        "",
        trainer={"replicas": 1, "config": {"batchSize": 64, "epochs": 1}},
        pserver={"replicas": 1},
    )
    del values["data"]["end"]
    values["data"] |= {"source": {"url": url}, "stream": {"windowMs": 500}}
    return values


def trained(run: Run, records: int) -> Callable[[], bool]:
    """So many records are trained, the last pass is done, and its version answers."""

    def done() -> bool:
        status = run.status
        if status.ledger.trained < records:
            return False
        if any(each.state not in ("done", "waiting") for each in status.passes):
            return False
        versions = [each.version for each in status.passes if each.state == "done" and each.version]
        return bool(versions) and run.session.live == versions[-1] and versions[-1] in run.session.seen

    return done


def answers_are_those_of_the_version(run: Run) -> None:
    """The version's own sample, as it was scored while it was trained."""
    assert run.session.live is not None
    assert run.session.seen[run.session.live].max_abs_diff <= 1e-5
    _, versions = predict(run.places.serving, "ctr", [line.split(maxsplit=2)[2].decode() for line in clicks(50, 1)])
    assert set(versions) == {run.session.live}


def checkpoints(run: Run) -> list[CheckpointManifest]:
    """Oldest first."""
    store = open_store(run.places.store)
    names = [path.split("/")[1] for path in map(str, store.walk("checkpoints")) if path.endswith("manifest.json")]
    return sorted((read_checkpoint(store, name) for name in names), key=lambda each: each.pass_ordinal)


def newest_save(run: Run) -> CheckpointManifest:
    return [each for each in checkpoints(run) if not each.stands_on][-1]


def table_of(run: Run, saved: CheckpointManifest) -> list[bytes]:
    """The rows of the table by partition, as Paddle saved them."""
    store = open_store(run.places.store)
    return [gzip.decompress(store.get_bytes(entry.path)) for entry in saved.files if "/000/" in entry.path]


def table_and_answers(run: Run) -> tuple[Vectors, Vectors]:
    """The rows of the newest save, which is of the pass of the live version, as Paddle saved them and as cube answers."""
    assert run.session.live is not None
    manifest, model = newest_save(run), run.places.values.model
    assert manifest.pass_id == read_version(open_store(run.places.store), run.session.live).pass_id
    [server] = [role.file for role in run.session.supervisor.roles if role.command == "cube-server"]
    saved, answered = [], []
    with BlockingCubeClient([f"127.0.0.1:{server.cube.port}"]) as client:  # type: ignore[attr-defined]
        for text in table_of(run, manifest):
            rows = parse_rows(text, layout_of(model))
            values, missing = client.lookup(run.session.live, rows.keys)
            assert not missing.any(), f"{missing.sum()} of {len(missing)} rows are in no version"
            saved.append(rows.values)
            answered.append(values)
    return np.concatenate(saved), np.concatenate(answered)


def shows_and_clicks(lines: list[bytes]) -> dict[int, tuple[int, int]]:
    """By key, of lines."""
    found: dict[int, tuple[int, int]] = {}
    for line in lines:
        show, click, *features = line.decode().split()
        for key in (int(feature.split(":")[0]) for feature in features):
            had = found.get(key, (0, 0))
            found[key] = had[0] + int(show), had[1] + int(click)
    return found


def some_late(lines: list[bytes]) -> list[bytes]:
    """Every second click is a line of its own, after all the impressions."""
    clicked = [number for number, line in enumerate(lines) if line.startswith(b"1 1 ")][::2]
    late = [b"0 1 " + lines[number].removeprefix(b"1 1 ") for number in clicked]
    assert late
    return [line.replace(b"1 1 ", b"1 0 ", 1) if at in clicked else line for at, line in enumerate(lines)] + late


def clicks_with_a_freshness(run: Run) -> float:
    """Which the serving pod has counted."""
    [serving] = [role.file for role in run.session.supervisor.roles if role.command == "serving"]
    text = httpx.get(f"http://127.0.0.1:{serving.serving.admin_port}/metrics").text  # type: ignore[attr-defined]
    [found] = re.findall(r"elastic_ctr_serving_click_freshness_seconds_count (\S+)", text)
    return float(found)
