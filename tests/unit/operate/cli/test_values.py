import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from elastic_ctr.operate.cli.given_values import load_values
from elastic_ctr.operate.cli.main import build
from operate.cli.source_files import DATA_CONFIG, SLOT_CONF, values_of

COMMAND = str(Path(sys.executable).parent / "elastic-ctr")
SOURCE_EXAMPLE = ["-r", "-u", "4", "-m", "20", "-t", "2", "-p", "2", "-b", "5", "-s", "slot.conf", "-f", "data.config"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with both files in it."""
    (tmp_path / "data.config").write_text(DATA_CONFIG, encoding="utf-8")
    (tmp_path / "slot.conf").write_text(SLOT_CONF)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words: object) -> Result:
    return CliRunner().invoke(build("values"), ["values", *map(str, words)])


def test_the_line_of_the_sources_readme_writes_a_file_that_is_taken(folder: Path) -> None:
    done = subprocess.run(
        [COMMAND, "values", *SOURCE_EXAMPLE, "-o", "values.yaml"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "HDFS_UGI holds a password, which is left out: WebHDFS asks for the user alone\n"
    assert yaml.safe_load((folder / "values.yaml").read_text()) == values_of()
    assert load_values([folder / "values.yaml"], None).cube.config.shards == 5
    assert sorted(path.name for path in folder.iterdir()) == ["data.config", "slot.conf", "values.yaml"]


def test_today_s_names_and_the_sources_names_of_options_mean_the_same(folder: Path) -> None:
    old = call("--config_resource", "--cpu", 4, "--mem", 20, "--datafile", "data.config", "--slot_conf", "slot.conf")
    new = call("-u", 4, "-m", 20, "--data-config", "data.config", "--slot-conf", "slot.conf")
    defaults = call("-v", "-u", 4, "-m", 20)

    assert old.exit_code == 0
    assert old.stdout == new.stdout == defaults.stdout


@pytest.mark.parametrize("option", ["--hdfs-address", "-hd", "--hdfs_address"])
def test_an_address_may_be_given_beside_the_file(option: str, folder: Path) -> None:
    done = call(option, "hdfs://elsewhere:9000")

    assert yaml.safe_load(done.stdout)["data"]["source"]["url"] == "hdfs://elsewhere:9000"


def test_json_is_a_values_file_too(folder: Path) -> None:
    written = call("--json", "-u", 4, "-m", 20, "-t", 2, "-p", 2, "-b", 5)

    assert json.loads(written.stdout) == yaml.safe_load(written.stdout) == values_of()


@pytest.mark.parametrize(
    ("option", "instead"),
    [
        ("-a", "helm upgrade --install"),
        ("--apply", "helm upgrade --install"),
        ("-l", "elastic-ctr status --namespace"),
        ("--log", "elastic-ctr logs --namespace"),
        ("-c", "elastic-ctr predict FILE --namespace"),
        ("--config_client", "elastic-ctr predict FILE --namespace"),
    ],
)
def test_a_command_of_old_says_what_it_is_now(option: str, instead: str, tmp_path: Path) -> None:
    done = call(option, "-f", tmp_path / "nowhere")

    assert (done.exit_code, done.stdout) == (2, "")
    assert instead in done.stderr


def test_h_shows_help() -> None:
    asked = call("-h")

    assert asked.exit_code == 0
    assert "--data-config" in asked.stdout


@pytest.mark.parametrize("option", ["-u", "-m", "-t", "-p", "-b"])
def test_none_of_something_is_refused(option: str, folder: Path) -> None:
    refused = call(option, 0)

    assert refused.exit_code == 2
    assert f"'{option}'" in refused.stderr


def test_files_that_cannot_be_read_are_named_with_their_option(folder: Path) -> None:
    (folder / "binary").write_bytes(b"\xff\xfe")

    absent = call("-f", "nowhere")
    binary = call("-s", "binary")
    endless = call("-f", "/dev/zero")
    directory = call("-o", folder / "binary" / "values.yaml")

    assert [each.exit_code for each in (absent, binary, endless, directory)] == [2, 2, 2, 2]
    assert absent.stderr == "nowhere cannot be read: No such file or directory; say --data-config FILE\n"
    assert binary.stderr == "binary is not text in UTF-8; is it the right file for --slot-conf?\n"
    assert endless.stderr.startswith("/dev/zero has more than 1048576 bytes")
    assert directory.stderr.endswith("values.yaml cannot be written: File exists\n")


HOSTILE = [
    "A=$(touch {marker})",
    "A=`touch {marker}`",
    'HDFS_ADDRESS="`touch {marker}`"',
    "HDFS_ADDRESS=hdfs://n:9000; touch {marker}",
    "touch {marker}",
    "HDFS_ADDRESS=hdfs://n:9000 touch {marker}",
    "START_DATE_HR='x' && touch {marker}",
    ". {marker}.sh",
    "A=<(touch {marker})",
    "A=${{B:=$(touch {marker})}}",
    "x() {{ touch {marker}; }}; x",
]


def test_nothing_in_a_file_is_ever_executed(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    (tmp_path / "marker.sh").write_text(f"touch {marker}")
    (tmp_path / "slot.conf").write_text(f"$(touch {marker})\n")
    config = tmp_path / "data.config"
    for line in HOSTILE:
        config.write_text(line.format(marker=marker))

        done = call("-f", config, "-s", tmp_path / "slot.conf", "-hd", f"$(touch {marker})")

        assert done.exit_code == 2, line
        assert "Traceback" not in done.output
    assert not marker.exists()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200) | st.sampled_from(HOSTILE).map(str.encode), st.binary(max_size=40))
def test_any_file_is_taken_or_refused_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data_config: bytes, slot_conf: bytes
) -> None:
    def never(*args: object, **kwargs: object) -> None:
        raise AssertionError(f"something was started: {args}")

    for module, name in ((subprocess, "Popen"), (os, "system"), (os, "posix_spawn"), (os, "execve"), (os, "fork")):
        monkeypatch.setattr(module, name, never)
    (tmp_path / "data.config").write_bytes(data_config)
    (tmp_path / "slot.conf").write_bytes(slot_conf)

    done = call("-f", tmp_path / "data.config", "-s", tmp_path / "slot.conf")

    assert done.exit_code in (0, 2)
    assert done.exception is None or isinstance(done.exception, SystemExit)
    assert done.exit_code == 0 or done.stderr.strip()


@pytest.mark.parametrize(
    ("more", "url"),
    [
        ("tracking: {enabled: true}", "http://127.0.0.1:5000"),
        ("tracking: {enabled: true}\nlocal: {trackingUrl: 'http://mlflow:80'}", "http://mlflow:80"),
        ("local: {trackingUrl: 'http://mlflow:80'}", "http://mlflow:80"),
        ("tracking: {enabled: false}", None),
    ],
)
def test_a_run_on_one_machine_is_tracked_where_the_values_file_says_so(
    more: str, url: str | None, tmp_path: Path
) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(f"data: {{source: {{url: 'file:///logs'}}, start: 20200401/00, slots: [a]}}\n{more}\n")

    assert load_values([file], None).local.tracking_url == url
