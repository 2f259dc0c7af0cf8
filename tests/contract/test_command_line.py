"""What every command promises a person: complete help, exit codes as documented, a sentence for each refusal."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from answering import Said, saying
from elastic_ctr import __version__
from elastic_ctr.operate.cli.main import COMMANDS, build
from elastic_ctr.runtime.lifecycle import listen
from ports import free_port

COMMAND = str(Path(sys.executable).parent / "elastic-ctr")


def every_command() -> Iterator[tuple[str, Any]]:
    """Each command and group, by the words that call it."""

    def below(words: str, command: Any) -> Iterator[tuple[str, Any]]:
        yield words, command
        for name, each in getattr(command, "commands", {}).items():
            yield from below(f"{words} {name}", each)

    yield from below("elastic-ctr", typer.main.get_command(build()))


TREE = dict(every_command())


def call(*words: object, given: str | None = None) -> Result:
    wide = {"COLUMNS": "400"}  # a message about a long path is not wrapped
    return CliRunner(env=wide).invoke(
        build(str(words[0]) if words else None), [str(word) for word in words], input=given
    )


@pytest.fixture
def nobody() -> str:
    """An address where nobody listens."""
    return f"127.0.0.1:{free_port()}"


@pytest.mark.parametrize("words", TREE)
def test_every_command_and_each_of_its_options_says_what_it_does(words: str) -> None:
    command = TREE[words]

    assert (command.help or "").strip().endswith((".", ":", "hours")), command.help
    silent = [each.name for each in command.params if not (getattr(each, "help", None) or "").strip()]
    assert silent == []
    assert call(*words.split()[1:], "--help").exit_code == 0
    assert call(*words.split()[1:], "-h").exit_code == 0


def test_each_command_is_there_when_it_alone_is_built() -> None:
    for name in COMMANDS:
        alone = typer.main.get_command(build(name))
        assert list(getattr(alone, "commands", {})) == [name]


def test_the_command_itself_shows_help_and_its_version() -> None:
    without = subprocess.run([COMMAND, "--help"], capture_output=True, text=True, check=False)
    assert without.returncode == 0
    assert all(name in without.stdout for name in COMMANDS)
    for asked in ("version", "--version"):
        version = subprocess.run([COMMAND, asked], capture_output=True, text=True, check=False)
        assert (version.returncode, version.stdout.strip()) == (0, __version__)


@pytest.mark.parametrize(("typed", "offered"), [("elastic-ctr st", "status"), ("elastic-ctr local d", "down")])
def test_the_completion_of_the_shell_offers_the_words_that_fit(typed: str, offered: str) -> None:
    words = typed.split()
    asked = {"_ELASTIC_CTR_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(words) - 1)}

    done = subprocess.run([COMMAND], capture_output=True, text=True, check=False, env={**os.environ, **asked})

    assert offered in done.stdout.split()


def test_predict_ends_without_an_error_once_its_output_is_closed() -> None:
    def answer(method: str, path: str, body: Any) -> Said:
        if path.endswith("/ready"):
            return 200, {}
        if method == "GET":
            return 200, {"inputs": [{"name": "5", "datatype": "UINT64"}], "versions": ["7"]}
        count = body["inputs"][0]["shape"][0]
        outputs = [{"name": "probability", "data": [0.5] * count}, {"name": "version", "data": [7] * count}]
        return 200, {"outputs": outputs}

    with saying(answer) as address:
        done = subprocess.run(
            ["bash", "-c", f"yes '1 0 5:5' | head -60000 | {COMMAND} predict - -a {address} | head -1"],
            capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip

    assert done.stdout == "0.5\n"
    assert "Broken pipe" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_typo_in_values_is_answered_with_the_file_and_the_setting_that_was_meant(tmp_path: Path) -> None:
    base, above = tmp_path / "values.yaml", tmp_path / "ports.yaml"
    base.write_text(VALUES.replace("start: 20200401/00", "start: 2025-11-03"))
    above.write_text("cube: {config: {shard: 3}}\nsurving: {replicas: 2}\nmodel: {zebra: 1}\n")

    refused = call("local", "run", "-f", base, "-f", above, "--dir", tmp_path / "run")

    assert refused.exit_code == 2
    assert set(refused.output.splitlines()) == {
        f"{base}: data.start: '2025-11-03' is not YYYYMMDD/HH or YYYYMMDD/HHMM, such as 20200401/00",
        f"{above}: cube.config.shard is not a setting; did you mean shards?",
        f"{above}: surving is not a setting; did you mean serving?",
        f"{above}: model.zebra is not a setting; remove it or mend its spelling",
    }


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["local", "run"],
        ["local", "run", "--no-such"],
        ["predict", "--batch"],
        ["import", "csv"],
        ["master"],
    ],
)
def test_an_unknown_command_or_a_missing_option_exits_with_2(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ELASTIC_CTR_CONFIG", raising=False)

    refused = call(*words)

    assert refused.exit_code == 2
    assert "Error" in refused.stderr


def test_status_of_roles_that_do_not_answer_exits_with_2_and_a_sentence_for_each(nobody: str) -> None:
    asked = call("status", "--address", nobody, "--transfer", nobody, "--serving", nobody)

    assert asked.exit_code == 2
    assert asked.output.count(f"http://{nobody}/status does not answer") == 3


def test_local_status_and_down_in_a_folder_without_a_run_name_it_absolutely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    status, down = call("local", "status", "--dir", "run"), call("local", "down", "--dir", "run")

    assert (status.exit_code, down.exit_code) == (2, 0)
    for each in (status, down):
        assert f"nothing runs in {tmp_path}/run: no run was ever started there" in each.output


VALUES = "data: {source: {url: file:///clicks}, start: 20200401/00, slots: ['0']}\n"


@pytest.mark.parametrize("verb", ["up", "run"])
def test_a_folder_that_cannot_be_used_is_refused_in_one_sentence(verb: str, tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text(VALUES)
    (tmp_path / "file").touch()

    for folder, reason in (
        ("/proc/run", "/proc/run: No such file or directory"),
        (tmp_path / "file", "Not a directory"),
        (tmp_path / "file" / "run", "Not a directory"),
    ):
        refused = call("local", verb, "-f", tmp_path / "values.yaml", "--dir", folder)

        assert refused.exit_code == 2
        [sentence] = refused.output.splitlines()
        assert sentence.startswith(f"--dir {folder} cannot be used: ")
        assert reason in sentence
        assert "Errno" not in sentence


@pytest.mark.parametrize("verb", ["up", "run"])
def test_a_full_disk_is_named_before_anything_starts(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "values.yaml").write_text(VALUES)
    monkeypatch.setattr(os, "fsync", full)

    refused = call("local", verb, "-f", tmp_path / "values.yaml", "--dir", tmp_path / "run")

    assert refused.exit_code == 2
    assert refused.output == (
        f"--dir {tmp_path / 'run'} cannot be used: {tmp_path / 'run'}: No space left on device; make room there, or name another folder by "
        "--dir\n"
    )


def test_a_port_that_is_taken_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "values.yaml").write_text(VALUES + f"master: {{config: {{statusPort: {port}}}}}\n")

        refused = call("local", "up", "-f", tmp_path / "values.yaml", "--dir", tmp_path / "run")

    assert refused.exit_code == 2
    [sentence] = refused.output.splitlines()
    assert sentence.startswith(f"master.config.statusPort: 127.0.0.1:{port} is used by another process")
    assert sentence.endswith("; `local.portBase`, 1000 higher, moves all ports of the run")


def test_predict_seek_and_rollback_without_a_server_exit_with_2_and_a_sentence(nobody: str) -> None:
    predict = call("predict", "-", "--address", nobody, given="1 0 5:0\n")
    seek = call("cube", "seek", "5", "--transfer", nobody)
    direct = call("cube", "seek", "5", "--version", "7", "--address", nobody)
    rollback = call("rollback", "7", "--transfer", nobody)

    assert [each.exit_code for each in (predict, seek, direct, rollback)] == [2, 2, 2, 2]
    assert "does not answer" in predict.output
    assert f"http://{nobody}/release does not answer" in seek.output
    assert "say --transfer" in seek.output
    assert f"{nobody} does not answer as a cube-server" in direct.output
    assert f"http://{nobody}/rollback does not answer" in rollback.output


@pytest.mark.parametrize("words", [[], ["7", "--resume"]])
def test_a_rollback_is_either_to_a_version_or_resumed(words: list[str]) -> None:
    refused = call("rollback", *words)

    assert refused.exit_code == 2
    assert "say either a VERSION to go back to, or --resume" in refused.output


def test_a_rollback_whose_token_is_not_there_or_is_none_says_which_file(tmp_path: Path) -> None:
    (tmp_path / "values.yaml").write_text("secret: one\nother: two\n")

    absent = call("rollback", "7", "--token-file", tmp_path / "token")
    wrong = call("rollback", "7", "--token-file", tmp_path / "values.yaml")

    assert (absent.exit_code, wrong.exit_code) == (2, 2)
    assert f"{tmp_path / 'token'}" in absent.output
    assert f"{tmp_path / 'values.yaml'} " in wrong.output
    assert "secret" not in wrong.output


ROLES = [
    "master",
    "trainer",
    "pserver",
    "cube-transfer",
    "cube-builder",
    "cube-server",
    "intake",
    "serving",
    "scoring",
]


@pytest.mark.parametrize("role", ROLES)
def test_a_role_refuses_a_file_it_cannot_read_or_does_not_know_with_2(role: str, tmp_path: Path) -> None:
    strange = tmp_path / "config.yaml"
    strange.write_text("zebra: 3\n")

    absent, unknown = call(role, "--config", tmp_path / "nowhere.yaml"), call(role, "--config", strange)

    assert (absent.exit_code, unknown.exit_code) == (2, 2)
    assert f"{tmp_path}/nowhere.yaml cannot be read" in absent.output
    assert f"{strange}: zebra is not a setting; remove it or mend its spelling" in unknown.output


def test_a_trainer_whose_token_file_is_empty_exits_with_2_and_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "internal").touch()
    (tmp_path / "config.yaml").write_text(f"""
        auth: {{internalFile: {tmp_path}/internal}}
        masterAddress: 127.0.0.1:1
        model: {{}}
        trainer: {{}}
        data: {{source: {{url: "file://{tmp_path}"}}, start: 20200401/00, slots: [a]}}
        store: {{url: "file://{tmp_path}/store"}}
    """)

    refused = call("trainer", "--config", tmp_path / "config.yaml")

    assert refused.exit_code == 2
    assert f"auth cannot be used: {tmp_path}/internal is empty" in refused.output


def test_a_master_with_a_damaged_ledger_ends_with_one_sentence_and_2(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").write_bytes(b"scrambled" * 4096)
    (tmp_path / "config.yaml").write_text(f"""
        master: {{stateDir: {tmp_path}, port: {free_port()}, statusPort: {free_port()}}}
        pservers: 1
        model: {{}}
        trainer: {{}}
        data: {{source: {{url: "file://{tmp_path}"}}, start: 20200401/00, slots: [a]}}
        store: {{url: "file://{tmp_path}/store"}}
    """)

    ended = call("master", "--config", tmp_path / "config.yaml")

    assert ended.exit_code == 2
    assert f"the ledger {tmp_path}/ledger.db is damaged (file is not a database)" in ended.output
    assert "Traceback" not in ended.output


def test_files_that_are_damaged_or_not_there_are_named(tmp_path: Path) -> None:
    junk = tmp_path / "part-00000.dict"
    junk.write_bytes(b"junk")

    dict_absent, dict_junk = call("dict", "stat", tmp_path / "no.dict"), call("dict", "stat", junk)
    seq_absent, seq_junk = call("seqfile", "dump", tmp_path / "no.seq"), call("seqfile", "dump", junk)

    assert [each.exit_code for each in (dict_absent, dict_junk, seq_absent, seq_junk)] == [2, 2, 2, 1]
    for each in (dict_absent, seq_absent):
        assert "no." in each.output
        assert "Errno" not in each.output
    for each in (dict_junk, seq_junk):
        assert "part-00000.dict" in "".join(each.output.split())
