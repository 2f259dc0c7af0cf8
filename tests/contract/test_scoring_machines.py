"""A scoring job whose processes are on several machines: commands and pods beside one file-server."""

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from contract import scoring_world, serving_world
from contract.file_server_world import TOKEN, FileServer
from contract.scoring_world import HOURS, call, command, of_all_tasks, put_trained_version, write_hours
from contract.serving_world import FIRST, Exported
from credentials import tokens
from elastic_ctr.config.load import dump, read_yaml, settings
from elastic_ctr.config.role_files import Auth, ScoringFile
from elastic_ctr.config.scoring_settings import ScoringConfig
from elastic_ctr.config.store_settings import StoreConfig
from elastic_ctr.config.values_file import Values
from elastic_ctr.jobs.scoring.order import Order
from elastic_ctr.operate.cli.kubernetes_job import report_in
from elastic_ctr.store.backends import Store, open_store

# pytest finds fixtures by the names of a module.
exports, store, values = serving_world.exports, serving_world.store, scoring_world.values


@pytest.fixture
def served(values: Path, file_server: FileServer, exports: dict[int, Exported], tmp_path: Path) -> Iterator[Store]:
    """A store with one version behind a file-server, whose token is in the file `internal`."""
    (tmp_path / "internal").write_text(f"test {TOKEN}\n")
    with closing(open_store(StoreConfig(url=file_server.url), tokens=tokens(TOKEN))) as opened:
        put_trained_version(opened, tmp_path / "work", exports[FIRST])
        yield opened


def pod_file(folder: Path, values: Path, url: str, token_file: Path | None = None) -> Path:
    """The settings of a pod that scores, as the chart writes them; its scratch is beside them."""
    folder.mkdir()
    settled = ScoringFile(
        data=settings(Values, read_yaml(values), "values.yaml").data,
        store=StoreConfig(url=url),
        auth=Auth(internal_file=None if token_file is None else str(token_file)),
        scoring=ScoringConfig(scratch_dir=str(folder / "scratch")),
        transfer_address="127.0.0.1:1",
    )
    file = folder / "pod.yaml"
    file.write_text(dump(settled))
    return file


def test_two_machines_share_a_job_on_a_file_server(
    values: Path, served: Store, exports: dict[int, Exported], tmp_path: Path
) -> None:
    """The version and the output are behind HTTP; each command is a machine of its own."""
    written = write_hours(tmp_path / "data", HOURS)
    words = (
        "predict", "-f", values, "--store", served.url, "-o", f"{served.url}/scores",
        "--token-file", tmp_path / "internal", "--processes", 1,
    )  # fmt: skip

    both = [subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [each.communicate(timeout=240)[1] for each in both]

    assert [each.returncode for each in both] == [0, 0], said
    for text in said:
        assert "1,000 rows with version" in text
    for path in served.walk("scores"):
        served.get(path, tmp_path / "out" / path.removeprefix("scores/"))
    for name, lines in written.items():
        for row, features in zip(of_all_tasks(tmp_path / "out", name), lines, strict=True):
            assert float(row["probability"]) == pytest.approx(exports[FIRST].probability(features), abs=1e-5)


def test_the_pods_of_a_job_share_it_and_each_says_the_whole_report(values: Path, served: Store, tmp_path: Path) -> None:
    """As the chart starts them: the role's own file, the order of the command, the token in a file."""
    write_hours(tmp_path / "data", HOURS)
    pods = []
    for number in range(2):
        file = pod_file(tmp_path / f"pod-{number}", values, served.url, tmp_path / "internal")
        order = Order(deed="evaluate", output="scores/x", last="20200401/01", pods=2).model_dump_json(by_alias=True)
        words = ("scoring", "--config", file, "--order", order)
        index = {**os.environ, "JOB_COMPLETION_INDEX": str(number)}
        pods.append(
            subprocess.Popen(command(*words), env=index, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        )

    said = [each.communicate(timeout=240) for each in pods]

    assert [each.returncode for each in pods] == [0, 0], said
    first, second = (report_in(out, "x") for out, _ in said)
    assert first == second
    assert (first["version"], first["total"]["rows"], list(first["splits"])) == (FIRST, 1000, list(HOURS))
    assert served.exists("scores/x/_SUCCESS")


def test_a_pod_sends_the_token_of_the_release_to_no_other_host(
    values: Path, served: Store, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    write_hours(tmp_path / "data", HOURS)
    heard: list[tuple[str, str | None]] = []

    class Elsewhere(BaseHTTPRequestHandler):
        """Has nothing, and takes nothing."""

        def do_GET(self) -> None:
            self._answer(404)

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self._answer(403)

        do_HEAD = do_GET
        do_MKCOL = do_DELETE = do_MOVE = do_PUT

        def _answer(self, code: int) -> None:
            heard.append((self.command, self.headers["authorization"]))
            self.send_response(code)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing on the test's standard error."""

    elsewhere = HTTPServer(("127.0.0.1", 0), Elsewhere)
    request.addfinalizer(elsewhere.server_close)
    request.addfinalizer(elsewhere.shutdown)
    threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
    file = pod_file(tmp_path / "pod", values, served.url, tmp_path / "internal")
    url = f"http://127.0.0.1:{elsewhere.server_port}/scores"
    order = Order(deed="predict", output=url, last="20200401/01").model_dump_json(by_alias=True)

    done = call("scoring", "--config", file, "--order", order)

    assert done.returncode == 1
    assert "no token is set" in done.stderr
    assert {sent for _, sent in heard} == {None}
    assert {"PUT", "MKCOL", "MOVE"} & {method for method, _ in heard}


def test_a_pod_without_an_order_or_with_a_wrong_one_says_so(values: Path, tmp_path: Path) -> None:
    words = ("scoring", "--config", pod_file(tmp_path / "pod", values, (tmp_path / "store").as_uri()))

    without, wrong, gone = call(*words), call(*words, "--order", "{}"), call(*words, "--order", ORDER_OF_17)

    assert [each.returncode for each in (without, wrong, gone)] == [2, 2, 2]
    assert "this pod has no --order" in without.stderr
    assert "--order is not what the commands of this release write: deed" in wrong.stderr
    assert "version 17 is not in the store" in gone.stderr


ORDER_OF_17 = '{"deed":"evaluate","output":"scores/x","version":"17"}'
