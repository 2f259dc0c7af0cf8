"""One system that stands, as `local up` starts it: what an operator asks of it, and what strangers send to it."""

import gzip
import http.client
import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from attacks import attacks, raw_answer
from elastic_ctr.config.load import settings
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.cli.check import verify_serving
from elastic_ctr.operate.local.endpoints import EndpointUnavailable, ask, predict
from elastic_ctr.operate.local.plan import RunPlaces, ports
from elastic_ctr.operate.local.run_folder import RunFolder, process_tree, still_running
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.versions import layout
from elastic_ctr.store.versions.published_files import published_versions, read_checkpoint, read_version
from manual_metrics import in_the_manual, on_the_page
from pipeline.forging import change_output_weights, forge, one_column_too_far
from pipeline.running import TWO_SHARDS, values_for
from pipeline.test_whole_run import COMMAND, synthetic
from socket_table import listening_sockets

DOCS = Path(__file__).parents[2] / "docs"
Done = subprocess.CompletedProcess[str]


def command(*arguments: object, given: str | None = None) -> Done:
    return subprocess.run(
        [COMMAND, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=240, input=given
    )


class Standing:
    """A folder in which `local up` has started everything."""

    def __init__(self, folder: Path) -> None:
        slots = synthetic(folder / "data", 1, 6_000)
        given = values_for(
            folder / "data", slots, "20200401/00", "20200401/01",
            trainer={"replicas": 1}, pserver={"replicas": 1}, cube=TWO_SHARDS,
        )  # fmt: skip
        self.values = folder / "values.yaml"
        self.values.write_text(yaml.safe_dump(given))
        self.places = RunPlaces(folder / "run", settings(Values, given, "values.yaml"))
        self.up = command("local", "up", "-f", self.values, "--dir", self.places.folder)
        assert self.up.returncode == 0, self.up.stderr
        self.store = open_store(self.places.store)
        self.scratch = folder
        self.base = published_versions(self.store)[0]

    def status(self) -> dict[str, Any]:
        return dict(ask(f"http://{self.places.transfer}/status"))

    def until(self, what: str, condition: Callable[[dict[str, Any]], Any], seconds: float = 60) -> Any:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            try:
                if found := condition(self.status()):
                    return found
            except EndpointUnavailable:
                pass
            time.sleep(0.1)
        raise AssertionError(f"{what}: not within {seconds} s; {self.status()}")

    def publish(self, **changes: Any) -> int:
        """Another base like the first one but for the changes, under the next name."""
        version = max(published_versions(self.store)) + 1
        forge(self.store, read_version(self.store, self.base), version, self.scratch / str(version), **changes)
        return version

    def goes_live(self, version: int) -> None:
        self.until(f"version {version} goes live", lambda status: status["live"] == version)

    def live(self) -> int:
        """The live version, once no other is on its way and serving answers with it."""
        live = int(self.until("a version is live", lambda s: s["candidate"] is None and not s["next"] and s["live"]))
        self.until("serving answers with it", lambda _: predict(self.places.serving, "ctr", ["1:0"])[1] == [live])
        return live

    def processes(self) -> list[psutil.Process]:
        """The runner and everything below it."""
        runner = RunFolder(self.places.folder).runner()
        assert runner is not None
        return process_tree(runner)

    def named(self, role: str) -> list[psutil.Process]:
        return [each for each in self.processes() if role in each.cmdline()]

    def lines(self, count: int) -> list[str]:
        part = self.places.values.data.source.url.removeprefix("file://") + "/20200401/00/part-00000"
        return Path(part).read_text().splitlines()[:count]


@contextmanager
def stopped(processes: list[psutil.Process]) -> Iterator[None]:
    """They sleep meanwhile."""
    assert processes
    for each in processes:
        each.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for each in processes:
            each.send_signal(signal.SIGCONT)


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    folder = tmp_path_factory.mktemp("standing")
    try:
        yield Standing(folder)
    finally:
        command("local", "down", "--dir", folder / "run")


def test_up_says_where_predictions_are_and_status_says_where_everything_is(system: Standing) -> None:
    folder = system.places.folder

    again = command("local", "up", "-f", system.values, "--dir", folder)
    local = command("local", "status", "--dir", folder)
    whole = command("status", "--dir", folder)
    serving_admin = f"127.0.0.1:{system.places.values.serving.config.admin_port}"
    partly = command("status", "--address", "127.0.0.1:1", "--transfer", "127.0.0.1:1", "--serving", serving_admin)

    assert f"predictions: http://{system.places.serving}" in system.up.stderr
    assert (again.returncode, local.returncode, whole.returncode, partly.returncode) == (2, 0, 0, 1)
    assert "is up already" in again.stderr
    for each in (local, whole):
        assert "20200401/00" in each.stdout
        assert f"live       version {system.status()['live']}" in each.stdout
        assert "events until 2020-04-01 01:00 UTC" in each.stdout
    assert "127.0.0.1:1/status does not answer" in " ".join(partly.stdout.split())


def test_commands_find_their_run_by_its_folder(system: Standing) -> None:
    live, folder = system.live(), system.places.folder
    line = system.lines(1)[0]
    key = line.split()[2].partition(":")[0]

    def at_the_folder(*words: object, given: str | None = None, default: bool = False) -> Done:
        where = () if default else ("--dir", folder)
        return subprocess.run(
            [COMMAND, *map(str, (*words, *where))],
            capture_output=True, text=True, check=False, timeout=240, input=given, cwd=system.scratch,
        )  # fmt: skip

    (system.scratch / "elastic-ctr-local").symlink_to(folder)
    for default in (False, True):
        predict = at_the_folder("predict", "-", given=f"{line}\n", default=default)
        seek = at_the_folder("cube", "seek", key, default=default)
        serving = at_the_folder("check", "serving", default=default)
        cube = at_the_folder("check", "cube", default=default)
        rollback = at_the_folder("rollback", live, default=default)
        resumed = at_the_folder("rollback", "--resume", default=default)
        logs = at_the_folder("logs", "cube-server", "--tail", 1, default=default)

        for done in (predict, seek, serving, cube, rollback, resumed, logs):
            assert done.returncode == 0, done
        assert 0 < float(predict.stdout) < 1
        assert seek.stdout.startswith(f"{key}\t{live}\t")
        assert f"by version {live}" in serving.stdout
        assert {each[: each.index("]")] for each in logs.stdout.splitlines()} <= {
            "[ctr-cube-s0-0", "[ctr-cube-s1-0",
        }  # fmt: skip


def test_seek_needs_to_know_only_where_transfer_is(system: Standing) -> None:
    live = system.live()
    key = system.lines(1)[0].split()[2].partition(":")[0]

    found = command("cube", "seek", key, "--transfer", system.places.transfer)
    missing = command("cube", "seek", key, "999999999999", "--transfer", system.places.transfer)
    not_held = command("cube", "seek", key, "--transfer", system.places.transfer, "--version", 1)

    assert (found.returncode, missing.returncode, not_held.returncode) == (0, 1, 2)
    assert found.stdout.startswith(f"{key}\t{live}\t")
    assert len(found.stdout.split()) == 2 + system.places.values.model.embedding_dim
    assert missing.stdout.splitlines()[1] == f"999999999999\t{live}\tmissing"
    assert "no cube-server holds version 1; held are: " in not_held.stderr


def test_checks_say_that_predictions_and_lookups_are_answered_right(system: Standing) -> None:
    live = system.live()

    serving = command("check", "serving", "--address", system.places.serving, "--json")
    cube = command("check", "cube", "--transfer", system.places.transfer, "--json")
    nobody = command("check", "cube", "--transfer", "127.0.0.1:1")

    answered, whole = json.loads(serving.stdout), json.loads(cube.stdout)
    assert (serving.returncode, cube.returncode, nobody.returncode) == (0, 0, 1)
    assert (answered["version"], whole["version"]) == (live, live)
    assert 0 < answered["probability"] < 1
    assert answered["slots"] == len(system.places.values.data.slots or ())
    assert whole["partitions"] == system.places.values.model.partitions
    assert [each["partitions"] for each in whole["holders"]] == [6, 6]


def test_predict_names_bad_lines_and_answers_the_others(system: Standing) -> None:
    good, other = system.lines(2)

    asked = command("predict", "-", "--address", system.places.serving, given=f"{good}\n1 2 5:0\nnonsense\n{other}\n")

    answers = asked.stdout.splitlines()
    assert asked.returncode == 1
    assert [answer == "nan" for answer in answers] == [False, True, True, False]
    assert "line 2: click_above_show" in asked.stderr
    assert "line 3: " in asked.stderr
    assert "2 lines" in asked.stderr


def test_the_examples_of_the_http_protocols_are_answered_as_documented(system: Standing) -> None:
    page = (DOCS / "serving-protocols.md").read_text()
    examples = re.findall(r"^curl -s http://127\.0\.0\.1:8400(\S+) -d '\n(.*?)'$", page, re.MULTILINE | re.DOTALL)
    # tests/pipeline/test_rows.py asks for the predictions of a model of rows and for their explanations.
    source, inference, *_ = (
        json.loads(each) for each in re.findall(r"^```json\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    )
    kept = http.client.HTTPConnection(system.places.serving, timeout=30)
    answers = []
    for path, body in examples:
        # As curl sends it.
        kept.request("POST", path, body.replace("\n", ""), {"Content-Type": "application/x-www-form-urlencoded"})
        answers.append(json.loads(kept.getresponse().read()))
    kept.close()

    assert len(answers) == 3
    old, *new = answers
    assert old.keys() == source.keys()
    assert [each.keys() for each in old["predictions"]] == [each.keys() for each in source["predictions"]]
    for answer in new:
        assert answer.keys() == inference.keys()
        for given, said in zip(answer["outputs"], inference["outputs"], strict=True):
            assert {**given, "data": None} == {**said, "data": None}
    probabilities = [old["predictions"][0]["prob1"], *(each["outputs"][0]["data"][0] for each in new)]
    # The same instance three times; the first door's is the f32 as a decimal number too.
    assert probabilities == pytest.approx([probabilities[0]] * 3, abs=1e-6)


def test_a_wrong_request_is_refused_by_its_field_and_the_next_request_is_answered(system: Standing) -> None:
    host, port = system.places.serving.split(":")
    [slot, *_] = system.places.values.data.slots or ()

    def line(data: list[Any]) -> bytes:
        return json.dumps(
            {"inputs": [{"name": "line", "shape": [len(data)], "datatype": "BYTES", "data": data}]}
        ).encode()

    def post(path: str, body: bytes, length: int | None = None) -> tuple[int, str]:
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        try:
            connection.putrequest("POST", path)
            connection.putheader("content-length", str(len(body) if length is None else length))
            connection.endheaders(body)
            answer = connection.getresponse()
            said = json.loads(answer.read())
            return answer.status, str(said.get("error") or said.get("err_msg"))
        finally:
            connection.close()

    v2, old = "/v2/models/ctr/infer", "/ElasticCTRPredictionService/inference"
    text = {"name": slot, "shape": [1], "datatype": "UINT64", "data": ["seven"]}
    limit = system.places.values.serving.config.max_body_bytes
    answers = {
        "wrong JSON": post(v2, b'{"inputs": ['),
        "unknown slot": post(v2, json.dumps({"inputs": [{**text, "name": "nobody", "data": [7]}]}).encode()),
        "text for a number": post(v2, json.dumps({"inputs": [text]}).encode()),
        "a feasign of text": post(
            old, json.dumps({"instances": [{"slots": [{"slot_name": slot, "feasigns": ["x"]}]}]}).encode()
        ),
        "a bad line": post(v2, line(["1:0", "five:0"])),
        "100,001 instances": post(v2, line(["1:0"] * 100_001)),
        "too long": post(v2, b"{", limit + 1),
    }
    live = system.live()
    probabilities, versions = predict(system.places.serving, "ctr", ["1:0", ""])

    codes = {name: code for name, (code, _) in answers.items()}
    assert codes == {
        "wrong JSON": 400, "unknown slot": 400, "text for a number": 400, "a feasign of text": 400, "a bad line": 400,
        "100,001 instances": 413, "too long": 413,
    }  # fmt: skip
    for name, part in (
        ("wrong JSON", "JSON"), ("unknown slot", "nobody"), ("text for a number", "seven"), ("a feasign of text", "feasigns"),
        ("a bad line", "[1]"), ("100,001 instances", "100001"), ("too long", str(limit)),
    ):  # fmt: skip
        assert part in answers[name][1], (name, answers[name])
    assert len(probabilities) == 2
    assert set(versions) == {live}


def test_every_metric_stands_in_the_manual_and_nothing_else(system: Standing) -> None:
    values = system.places.values
    predict(system.places.serving, "ctr", ["1:0"])
    doors = {
        "master": values.master.config.status_port, "cube-transfer": values.cube_transfer.config.port,
        "cube-builder": values.cube_transfer.config.port + 1, "cube-server": values.cube.config.admin_port,
        "serving": values.serving.config.admin_port,
    }  # fmt: skip

    found = []
    for role, port in doors.items():
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
            found += on_the_page(role, page.read().decode())
    # This run has no intake.
    # tests/contract/test_archive.py has those of an archive.
    manual = [line for line in in_the_manual() if not line.startswith("| intake |") and "_archive_" not in line]

    assert manual == found, "\n".join(found)


def test_the_rows_of_a_pserver_are_those_of_its_checkpoint_wherever_they_are_shown(system: Standing) -> None:
    folder, port = system.places.folder, system.places.values.master.config.status_port
    [checkpoint] = [each.rstrip("/") for each in system.store.list(layout.CHECKPOINTS)]
    files = [each.path for each in read_checkpoint(system.store, checkpoint).files if "/000/" in each.path]
    saved = [system.store.get_bytes(path) for path in files]
    rows = sum(len(gzip.decompress(each).splitlines()) for each in saved)
    [server] = system.named("elastic_ctr.training.pserver.process")

    status = json.loads(command("status", "--dir", folder, "--json").stdout)["master"]
    text = command("status", "--dir", folder).stdout
    page = command("report", "--dir", folder).stdout
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as found:
        metrics = found.read().decode()

    assert rows > 1000
    [saved_pass] = [each for each in status["passes"] if each["table"]]
    assert saved_pass["table"] == [{"rows": rows, "new": rows, "expired": 0, "bytes": sum(map(len, saved))}]
    [memory] = [each["memoryBytes"] for each in status["pservers"]]
    assert memory == pytest.approx(server.memory_info().rss, rel=0.1)
    assert re.search(rf"^ +0 +{rows:,} +{rows:,} +0 +{sum(map(len, saved)):,} +[\d,]+$", text, re.MULTILINE)
    assert f"<caption>Pservers, after the save of {saved_pass['pass']}</caption>" in page
    assert f'elastic_ctr_master_table_rows{{pserver="0"}} {float(rows)}' in metrics


def test_the_sockets_that_listen_are_those_of_the_manual_and_none_is_paddles(system: Standing) -> None:
    documented = {f"{each.block}.{each.key}" for each in listening_sockets() if each.on_one_machine} - {
        "intake.config.port"
    }
    known = {port: setting for setting, found in ports(system.places.values) for port in found}

    listening = {
        found.laddr
        for process in system.processes()
        for found in process.net_connections(kind="inet")
        if found.status == psutil.CONN_LISTEN
    }

    # gRPC's sockets take both families.
    assert {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}
    assert {known.get(address.port, address.port) for address in listening} == documented
    # Paddle's servers have sockets that this user alone reaches.
    servers = list((system.places.folder / "scratch").glob("pserver-*/generation-*/88*"))
    assert [each.is_socket() for each in servers] == [True]
    assert oct(servers[0].parent.stat().st_mode & 0o777) == "0o700"


def test_no_socket_runs_a_command_or_writes_a_file_for_a_stranger(system: Standing, tmp_path: Path) -> None:
    ports_open = {
        found.laddr.port
        for process in system.processes()
        for found in process.net_connections(kind="inet")
        if found.status == psutil.CONN_LISTEN
    }

    tried = [(port, name) for port in sorted(ports_open) for name in attacks(tmp_path)]
    with ThreadPoolExecutor(16) as threads:
        answers = dict(
            zip(tried, threads.map(lambda each: raw_answer(each[0], attacks(tmp_path)[each[1]]), tried), strict=True)
        )

    assert len(answers) > 60
    assert [where for where, answer in answers.items() if re.match(rb"HTTP/1\.\d 2", answer)] == []
    assert list(tmp_path.iterdir()) == []
    assert verify_serving(system.places.serving, "ctr").facts["version"] == system.live()


def test_a_rollback_holds_until_it_is_resumed(system: Standing) -> None:
    older = system.live()
    newer = system.publish()
    system.goes_live(newer)
    transfer = ("--transfer", system.places.transfer)
    known = ("--token-file", system.places.folder / "tokens" / "operate")

    (system.scratch / "other-token").write_text("ann guessed\n")
    unknown = command("rollback", older, *transfer, "--token-file", system.scratch / "other-token")
    never = command("rollback", 1, *transfer, *known)
    back = command("rollback", older, *transfer, *known)
    system.goes_live(older)
    held = system.status()["promotionPaused"]
    both = command("rollback", older, "--resume", *transfer, *known)
    on = command("rollback", "--resume", *transfer, *known)
    system.goes_live(newer)

    printed = command("audit", "--dir", system.places.folder, "--json")

    assert (unknown.returncode, never.returncode, back.returncode, both.returncode, on.returncode) == (2, 2, 0, 2, 0)
    audited = [json.loads(line) for line in printed.stdout.splitlines()]
    ordered = [(each["token"], each["on"], each["result"]) for each in audited if each["call"] == "rollback"]
    # Tests before this one may have rolled back, too.
    assert ordered[-3:] == [
        ("local", "version 1", f"refused: {never.stderr.partition(': ')[2].strip()}"),
        ("local", f"version {older}", "done"),
        ("local", "resume", "done"),
    ]
    assert [each["token"] for each in audited if "no token of the right 'operate'" in each["result"]] == ["-"]
    assert "does not take the token that was given" in unknown.stderr
    assert "version 1 " in never.stderr
    assert "until `elastic-ctr rollback --resume`" in back.stdout
    assert held
    assert "either a VERSION" in both.stderr
    assert not system.status()["promotionPaused"]


def test_a_donefile_that_names_what_is_not_there_stands_in_nobodys_way(system: Standing) -> None:
    nowhere = max(published_versions(system.store)) + 1000
    donefile = system.places.folder / "store" / layout.BASE_DONEFILE
    line = {"id": nowhere, "key": nowhere, "input": f"/{layout.cube_folder(nowhere, 'base')}"}
    donefile.write_text(donefile.read_text() + json.dumps(line) + "\n")

    def named(status: dict[str, Any], version: int = nowhere) -> list[str]:
        return [each for each in status["problems"] if str(version) in each]

    [problem] = system.until("the status names it", named)
    with stopped(system.named("cube-transfer")):
        # It looks when the file is gone already.
        lacking = system.publish()
        file = layout.cube_file(lacking, "base", 7, 12)
        system.store.delete(file)
    [missing] = system.until("the status names it", lambda status: named(status, lacking))
    system.goes_live(system.publish())

    assert "has no manifest in the store" in problem
    assert f"cannot be built: {file} is not in the store" in missing


def test_a_version_with_a_file_cut_short_is_refused_and_the_old_one_answers(system: Standing) -> None:
    live = system.live()
    version = max(published_versions(system.store)) + 1
    # Nobody reads the files before they are cut.
    with stopped(system.named("cube-builder")):
        forge(system.store, read_version(system.store, system.base), version, system.scratch / str(version))
        file = system.places.folder / "store" / layout.cube_file(version, "base", 3, 12)
        os.truncate(file, file.stat().st_size // 2)
    reason = system.until("the version is refused", lambda status: status["refused"].get(str(version)))

    assert "feature-00003-of-00012.seq" in reason
    assert system.status()["live"] == live

    with stopped(system.named("cube-server")):
        version = system.publish()
        system.until("it is built", lambda status: version in status["built"])
        part = system.places.folder / "store" / layout.dictionary_folder(version) / "part-00005.dict"
        os.truncate(part, part.stat().st_size // 2)
    reason = system.until("the version is refused", lambda status: status["refused"].get(str(version)))

    assert "part-00005.dict" in reason
    assert system.status()["live"] == live
    assert set(predict(system.places.serving, "ctr", ["1:0"])[1]) == {live}
    system.goes_live(system.publish())


@pytest.mark.parametrize("changes", [{"weights": change_output_weights}, {"rows": one_column_too_far}])
def test_a_version_that_answers_wrongly_is_refused_and_the_old_one_stays_live(
    system: Standing, changes: dict[str, Any]
) -> None:
    live, version = system.live(), system.publish(**changes)
    line = json.loads(system.store.get_bytes(layout.sample_file(system.base)).splitlines()[0])["line"]

    reason = system.until("the version is settled", lambda status: status["refused"].get(str(version)))
    shown = command("status", "--dir", system.places.folder)

    assert str(version) in reason or "sample" in reason, reason
    assert system.status()["live"] == live
    assert set(predict(system.places.serving, "ctr", [line])[1]) == {live}
    assert str(version) in shown.stdout
    # A version from the same hands without the change is not refused.
    system.goes_live(system.publish())


def test_a_key_that_was_never_seen_and_no_key_at_all_are_answered_alike(system: Standing) -> None:
    live = system.live()

    probabilities, versions = predict(system.places.serving, "ctr", ["1:0", "", "424242424242:0 7:9"])

    assert len(probabilities) == 3
    assert set(versions) == {live}
    # Both are zeros.
    assert probabilities[1] == probabilities[2]


def test_a_stopped_pass_ends_nothing_but_training(system: Standing) -> None:
    live, before = system.live(), {each.pid for each in system.processes()}
    hour = system.scratch / "data" / "20200401" / "01"
    hour.mkdir(exist_ok=True)
    (hour / "part-00000").write_text("".join(f"{line}\n1 0 oops\n" for line in system.lines(50)))
    (hour / "donefile").touch()

    ends = time.monotonic() + 120
    log = system.places.folder / "logs" / "local.log"
    while "pass 20200401/01 is stopped: " not in log.read_text():
        assert time.monotonic() < ends
        time.sleep(0.1)
    # The runner has said it, and has looked again since.
    serving = verify_serving(system.places.serving, "ctr")
    status = command("local", "status", "--dir", system.places.folder)

    assert serving.facts["version"] == live
    assert before <= {each.pid for each in system.processes()}
    assert status.returncode == 0
    assert "pass 20200401/01 is stopped" in status.stdout
    assert "max_refused_share" in status.stdout or "maxRefusedShare" in status.stdout


def test_down_leaves_nothing_running_and_what_was_published(system: Standing) -> None:
    running = system.processes()
    # The others may be due for deletion: cube-transfer looks once in a while.
    wanted = {system.status()[each] for each in ("live", "previous")} - {None}
    folder = system.places.folder

    down = command("local", "down", "--dir", folder)
    left = still_running(running)
    again = command("local", "down", "--dir", folder)
    elsewhere = command("local", "down", "--dir", system.scratch / "nowhere")
    asked = [command(*words, "--dir", folder) for words in (("local", "status"), ("status",), ("check", "serving"))]

    assert left == []
    assert (down.returncode, again.returncode, elsewhere.returncode) == (0, 0, 0)
    assert len(running) > 12
    assert down.stdout == f"{len(running)} processes of {folder} have ended\n"
    assert f"nothing runs in {folder}; the run ended at 2" in again.stdout
    assert again.stdout.endswith(": told to end\n")
    assert f"nothing runs in {system.scratch}/nowhere: no run was ever started there" in elsewhere.stdout
    for each in asked:
        assert each.returncode == 2
        assert "the run ended at 2" in each.stdout + each.stderr
    assert wanted
    assert wanted <= set(published_versions(system.store))


def test_up_over_a_version_that_is_live_returns_once_serving_answers_with_it(system: Standing) -> None:
    live = max(published_versions(system.store))

    up = command("local", "up", "-f", system.values, "--dir", system.places.folder)
    assert up.returncode == 0, up.stderr

    assert verify_serving(system.places.serving, "ctr").facts["version"] == live


def test_a_runner_that_is_killed_takes_everything_along_and_its_folder_says_so(system: Standing) -> None:
    running = system.processes()
    running[0].kill()
    ends = time.monotonic() + 60
    while still_running(running):
        assert time.monotonic() < ends, still_running(running)
        time.sleep(0.1)

    status = command("status", "--dir", system.places.folder)

    assert status.returncode == 2
    assert f"nothing runs in {system.places.folder}; the last words in " in status.stdout
