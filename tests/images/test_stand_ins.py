"""What the cluster tests bring where no registry is reached does what the images it stands in for do."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from credentials import tokens
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.runtime.mlflow import TrackingServer
from elastic_ctr.runtime.status.master_status import TrainingStatus
from elastic_ctr.store.backends import AlreadyPublished, StoreError, open_store
from elastic_ctr.training.master.tracking import Tracking
from images.containers import Image, Start

ROOT = Path(__file__).parents[2]
TOKEN = "a-word"

StandIn = Callable[[str], Image]


def answer(url: str) -> httpx.Response | None:
    try:
        return httpx.get(url, timeout=5, trust_env=False)
    except httpx.HTTPError:
        return None


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """What the chart mounts: nginx.conf, and what it includes."""
    (tmp_path / "nginx.conf").write_text((ROOT / "charts/elastic-ctr/files/nginx.conf").read_text())
    (tmp_path / "listen.conf").write_text("listen 8080;\n")
    (tmp_path / "tokens.conf").write_text('"~^Bearer (?<given>[A-Za-z0-9._~+=-]+)$" /run/elastic-ctr/tokens/$given;\n')
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / TOKEN).touch()
    tmp_path.chmod(0o755)
    return tmp_path


def test_the_file_server_is_a_store(stand_in: StandIn, start: Start, conf: Path) -> None:
    script = "mkdir -p /data/store /data/tmp && exec nginx -e stderr -p /data -c /run/elastic-ctr/nginx.conf"
    server = start(
        stand_in("file-server"),
        "-c",
        script,
        mounts={conf: "/run/elastic-ctr"},
        ports=[8080],
        options=["--entrypoint", "sh", "--tmpfs", "/data:mode=1777"],
    )
    url = f"http://{server.address(8080)}"
    server.until("it is healthy", lambda: answer(f"{url}/healthz"))

    with (
        closing(open_store(StoreConfig(url=url), tokens=tokens(TOKEN))) as store,
        closing(open_store(StoreConfig(url=url), tokens=tokens("another-word"))) as stranger,
    ):
        store.put_bytes(b"seven", "output/versions/7.json")

        assert store.get_bytes("output/versions/7.json") == b"seven"
        assert store.list("output/versions") == ["7.json"]
        with pytest.raises(AlreadyPublished):
            store.put_bytes(b"other", "output/versions/7.json")
        with pytest.raises(StoreError):
            stranger.put_bytes(b"x", "output/versions/8.json")
    assert server.stop() == 0


# tests/unit/runtime/test_mlflow.py has what a master sends, and no test of the cluster needs this image.
@pytest.mark.nightly
def test_tracking_answers_as_the_chart_starts_it(stand_in: StandIn, start: Start) -> None:
    data = "/var/lib/elastic-ctr/tracking"
    server = start(
        stand_in("tracking"),
        "mlflow",
        "server",
        "--host=0.0.0.0",
        "--port=5000",
        "--workers=1",
        f"--backend-store-uri=sqlite:///{data}/mlflow.db",
        f"--artifacts-destination={data}/artifacts",
        ports=[5000],
        options=["--env", "HOME=/tmp", "--tmpfs", f"{data}:mode=1777"],
    )
    url = f"http://{server.address(5000)}"

    healthy = server.until("it is healthy", lambda: answer(f"{url}/health"), seconds=120)

    assert healthy.text == "OK"
    reports_to(url)


def reports_to(url: str) -> None:
    """A master that restarts, and an experiment that is deleted: what the real server keeps of it."""
    done = {"pass": "a", "state": "done", "doneAt": 7.0, "records": 10, "refused": 0, "keys": 5, "aucBefore": None}
    curve = {"roc": [0.0, 1.0], "deciles": [{"predictedCtr": 0.1, "observedCtr": 0.2}]}

    def trained_to(auc: float) -> dict[str, Any]:
        return {"auc": auc, "quality": {"before": None, "after": {"auc": auc}}}

    passes: list[dict[str, Any]] = [{**done, **trained_to(0.6), "ordinal": 1, "seconds": {"train": 1.5}}]

    def run(*, finished: bool) -> str:
        status = TrainingStatus.model_validate(
            {
                "passes": passes,
                "curves": [{"pass": "a", "before": None, "after": curve}],
                "finished": finished,
                "ledger": {},
            }
        )
        server = TrackingServer(url, timeout=60)
        one = Tracking(server, "ctr-train-1", "ctr", {"model": {"network": {"layers": [4]}}}, lambda: status)
        one.round()
        one.start().stop()
        body = {"experiment_ids": [number()], "max_results": 10}
        [found] = asked("POST", "runs/search", body)["runs"]
        return str(found["info"]["run_id"]) if found["info"]["status"] == ("FINISHED" if finished else "KILLED") else ""

    def asked(method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        given: dict[str, Any] = {"params": body} if method == "GET" else {"json": body}
        answer = httpx.request(method, f"{url}/api/2.0/mlflow/{path}", timeout=30, trust_env=False, **given)
        return dict(answer.raise_for_status().json())

    def number() -> str:
        found = asked("GET", "experiments/get-by-name", {"experiment_name": "ctr"})
        return str(found["experiment"]["experiment_id"])

    # The first call to a server that has just started takes its time.
    asked("POST", "experiments/create", {"name": "ctr"})
    first = run(finished=False)
    passes.append({**done, "ordinal": 2, "doneAt": 8.0, **trained_to(0.7), "seconds": {"train": 1.5}})
    second = run(finished=False)
    asked("POST", "experiments/delete", {"experiment_id": number()})
    passes.append({**done, "ordinal": 3, "doneAt": 9.0, **trained_to(0.8), "seconds": {"train": 1.5}})
    third = run(finished=True)

    assert first == second == third != ""
    found = asked("GET", "metrics/get-history", {"run_id": first, "metric_key": "auc/after"})["metrics"]
    assert [(each["step"], each["value"]) for each in found] == [(1, 0.6), (2, 0.7), (3, 0.8)]
    kept = asked("GET", "artifacts/list", {"run_id": first})["files"]
    assert sorted(each["path"] for each in kept) == ["auc.svg", "calibration.svg", "roc.svg"]
    picture = httpx.get(f"{url}/get-artifact", params={"run_id": first, "path": "roc.svg"}, trust_env=False)
    assert "ROC of pass a" in picture.raise_for_status().text


def test_hdfs_keeps_what_is_put_there(stand_in: StandIn, start: Start) -> None:
    image = stand_in("hdfs")
    # As two containers of one pod: one network, one volume.
    pod = start(image, "infinity", options=["--entrypoint", "sleep", "--volume", "/data"])
    shared = ["--network", f"container:{pod.name}", "--volumes-from", pod.name]
    told = ("--dir", "/data", "--bind", "0.0.0.0", "--host", pod.ip)
    name_node = start(image, *told, "namenode", options=shared)
    data_node = start(image, *told, "datanode", options=shared)
    state = f"http://{pod.ip}:9870/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"

    name_node.until("the NameNode answers", lambda: answer(state), seconds=120)
    data_node.until(
        "the DataNode lives", lambda: (got := answer(state)) and '"NumLiveDataNodes" : 1' in got.text, seconds=120
    )
    place = f"hdfs://{pod.ip}:9000/store"
    with (
        closing(open_store(StoreConfig(url=place, user="hdfs"))) as store,
        closing(open_store(StoreConfig(url=place, user="alice"))) as alice,
    ):
        store.put_bytes(b"seven", "output/versions/7.json")

        assert store.get_bytes("output/versions/7.json") == b"seven"
        with pytest.raises(StoreError, match="alice"):
            alice.put_bytes(b"x", "output/versions/8.json")
