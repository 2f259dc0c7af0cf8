from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

from elastic_ctr.formats.seqfile.file_writer import SequenceFileWriter
from elastic_ctr.operate.cli.data_files import seqfile_app


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "a.seq"
    with SequenceFileWriter(path) as writer:
        writer.write(np.array([1, 2**64 - 1, 7], np.uint64), np.array([[0.1, 2], [3, -4], [5, 6]], np.float32))
    return path


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(seqfile_app, ["dump", *(str(argument) for argument in arguments)])


def test_records_are_printed_as_key_and_floats(file: Path) -> None:
    assert call(file).stdout == "1\t0.100000001 2\n18446744073709551615\t3 -4\n7\t5 6\n"


def test_no_more_than_the_limit_is_printed(file: Path) -> None:
    assert call(file, "--limit", "1").stdout == "1\t0.100000001 2\n"


def test_json_keeps_keys_of_64_bits_as_text(file: Path) -> None:
    found = [json.loads(line) for line in call(file, "--json", "--limit", "2").stdout.splitlines()]

    assert found == [{"key": "1", "value": [0.100000001, 2.0]}, {"key": "18446744073709551615", "value": [3.0, -4.0]}]


def test_records_can_be_printed_as_bytes(file: Path) -> None:
    assert call(file, "--hex", "--limit", "1").stdout == "0100000000000000\tcdcccc3d00000040\n"
    assert json.loads(call(file, "--hex", "--json", "--limit", "1").stdout)["key"] == "0100000000000000"


def test_a_damaged_file_ends_with_1_after_the_records_before(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-1])

    done = call(file)

    assert done.exit_code == 1
    assert len(done.stdout.splitlines()) == 2
    assert f"{file} is damaged at byte" in done.stderr
