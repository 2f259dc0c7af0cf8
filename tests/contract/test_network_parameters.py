"""The file of a network's parameters, as Paddle writes it and as it must not be."""

from pathlib import Path

import numpy as np
import pytest

from contract.serving_world import export
from elastic_ctr.serving.batching.parameters import (
    OtherParameters,
    framework_proto,
    read_parameters,
    shapes_of,
    write_parameters,
)
from elastic_ctr.serving.batching.predictor import MODEL_FILE, PARAMETERS_FILE

SHAPES = [("a", (2, 3)), ("b", (1,)), ("c", ())]
VALUES = {
    "a": np.arange(6, dtype=np.float32).reshape(2, 3),
    "b": np.array([7], np.float32),
    "c": np.array(8, np.float32),
}


@pytest.fixture(scope="module")
def file() -> bytes:
    """Made when a test runs: Paddle is imported for it, and each worker of pytest collects all tests."""
    return write_parameters(VALUES)


def test_parameters_that_paddle_exports_are_read_and_written_byte_by_byte(tmp_path: Path) -> None:
    exported = export(tmp_path, 5)
    program = framework_proto().ProgramDesc.FromString((tmp_path / MODEL_FILE).read_bytes())
    data = (tmp_path / PARAMETERS_FILE).read_bytes()

    values = read_parameters(data, shapes_of(program))

    assert values.keys() == exported.dense.keys()
    for name, expected in exported.dense.items():
        np.testing.assert_array_equal(values[name], expected)
    assert write_parameters(values) == data


def test_a_file_that_is_cut_at_any_place_is_refused(file: bytes) -> None:
    for length in range(len(file)):
        with pytest.raises(OtherParameters):
            read_parameters(file[:length], SHAPES)


def test_any_changed_byte_before_the_values_is_refused(file: bytes) -> None:
    values = b"".join(each.tobytes() for each in VALUES.values())
    for place in range(len(file)):
        for change in (1, 0x80, 0xFF):
            changed = bytearray(file)
            changed[place] ^= change
            try:
                found = read_parameters(bytes(changed), SHAPES)
            except OtherParameters:
                continue
            # A value is another number.
            assert {name: each.shape for name, each in found.items()} == dict(SHAPES)
            assert b"".join(each.tobytes() for each in found.values()) != values


@pytest.mark.parametrize(
    "shapes",
    [
        SHAPES[:2],
        [*SHAPES, ("d", (1,))],
        [("a", (3, 2)), *SHAPES[1:]],
        [("a", (2**40, 2**40)), *SHAPES[1:]],
        [("a", (-1, 3)), *SHAPES[1:]],
    ],
    ids=["fewer", "more", "turned", "huge", "unknown"],
)
def test_parameters_of_another_program_are_refused(file: bytes, shapes: list[tuple[str, tuple[int, ...]]]) -> None:
    with pytest.raises(OtherParameters):
        read_parameters(file, shapes)
