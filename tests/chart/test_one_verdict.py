"""A laptop and a chart take the same values files."""

import random
from pathlib import Path
from typing import Any

import helm_python
import pytest

from chart.rendering import CHART, EXAMPLES, SMALLEST, Renderer, read
from chart.test_values_schema import KEYS, PROGRAM
from chart.verdicts import ROWS, Case, differ, odd_scalars, odd_settings, of_the_chart, of_the_laptop

SAMPLE = 100
SECTIONS = {
    key: KEYS[key]
    for each in PROGRAM
    for key in [each.rsplit(".", depth)[0] for depth in range(1, each.count(".") + 1)]
}
SETTINGS = {**{key: KEYS.get(key, {}) for key in PROGRAM}, **SECTIONS}
# The same ones each time, and some of each kind.
CHANCE = random.Random(5)
CASES = CHANCE.sample(list(odd_scalars()), SAMPLE) + CHANCE.sample(list(odd_settings(SETTINGS)), SAMPLE)


@pytest.mark.parametrize("tenth", range(10))
def test_two_hundred_odd_files_are_taken_by_both_or_by_neither(render: Renderer, tmp_path: Path, tenth: int) -> None:
    differing = [
        (above, laptop, chart)
        for below, above in CASES[tenth::10]
        for laptop in [of_the_laptop(tmp_path, below, above)]
        for chart in [of_the_chart(render, tmp_path, below, above)]
        if differ(laptop, chart, above)
    ]

    assert differing == []


def test_among_them_are_files_of_both_verdicts(tmp_path: Path) -> None:
    refused = [bool(of_the_laptop(tmp_path, below, above)) for below, above in CASES]

    assert SAMPLE / 2 < sum(refused) < 2 * SAMPLE - SAMPLE / 5


@pytest.mark.parametrize("example", [*EXAMPLES, *sorted((CHART / "ci").glob("*.yaml"))], ids=lambda file: file.stem)
def test_an_example_of_the_chart_is_taken_by_both(render: Renderer, tmp_path: Path, example: Path) -> None:
    below = {} if "data" in read(example) else SMALLEST

    assert of_the_laptop(tmp_path, below, example.read_text()) == ""
    assert of_the_chart(render, tmp_path, below, example.read_text()) == ""


REFUSED: dict[str, Case] = {
    "a pserver's two servers at one port": (SMALLEST, "pserver: {config: {port: 8900, adminPort: 8900}}"),
    "python's spelling": (SMALLEST, "trainer: {config: {batch_size: 64}}"),
    "python's spelling of a block": (SMALLEST, "cube_transfer: {config: {keepVersions: 3}}"),
    "text for a number": (SMALLEST, "model: {embeddingDim: '9'}"),
    "a number for a truth value": (SMALLEST, "master: {config: {evaluate: 1}}"),
    "an octal number of a vocabulary": (ROWS, "features: {user: {type: categorical, vocabulary: [02134]}}"),
    "an octal number of the slots": (SMALLEST, "data: {slots: [0101]}"),
    "a truth value as a column": (ROWS, "data: {label: n}"),
    "a truth value as a feature": (ROWS, "features: {y: {type: categorical}}"),
    "two containers at one port": (SMALLEST, "cube: {config: {port: 8601}}"),
    "a folder of a pod": (SMALLEST, "trainer: {config: {scratchDir: /a}}"),
    "more replicas than there are": (SMALLEST, "cubeTransfer: {config: {minReadyReplicas: 2}}"),
    "a path without the hour": (SMALLEST, "data: {path: '/dt={time:%Y-%m-%d}'}"),
    "a path without the minute": (SMALLEST, "data: {path: '/{time:%Y%m%d%H}', splitInterval: 15}"),
    "a path without the day": (SMALLEST, "data: {path: '/{time:%Y%m%H}'}"),
    "a path without the year": (SMALLEST, "data: {path: '/%Y/{time:%j%H}'}"),
    "a path with another code": (SMALLEST, "data: {path: '/{time:%Y%B%d}', splitInterval: 1440}"),
    "a path with other braces": (SMALLEST, "data: {path: '/{time:%Y%m%d%H}/{country}'}"),
    "a path with half a brace": (SMALLEST, "data: {path: '/{time:%Y%m%d%H'}"),
    "no end": (SMALLEST, "data: {sleepSeconds: .inf}"),
}
TAKEN: dict[str, Case] = {
    "the last port, and the next one": (SMALLEST, "pserver: {config: {port: 65535, adminPort: 65534}}"),
    "a null": (SMALLEST, "trainer: {config: {batchSize: null}}"),
    "no block of the laptop's": (SMALLEST, "local:\n"),
    "minutes of an hour": (ROWS, "features: {user: {type: categorical, vocabulary: [10:30, 2020-01-01, '7']}}"),
    "a whole number with a point": (SMALLEST, "cube: {config: {shards: 2.0}}"),
    "a path of days": (SMALLEST, "data: {path: '/dt={time:%Y-%m-%d}', splitInterval: 1440, end: null}"),
    "a path of minutes": (SMALLEST, "data: {path: '/{time:%Y/%j}/{time:%H%M}', splitInterval: 15}"),
    "braces without a time": (SMALLEST, "data: {path: '/a{b}%H'}"),
    "an exponent": (SMALLEST, "model: {sparseDim: 1e6}"),
    "text of one slot a line": (SMALLEST, 'data: {slots: "0101\\n07\\n"}'),
}


@pytest.mark.parametrize("name", REFUSED)
def test_both_refuse(render: Renderer, tmp_path: Path, name: str) -> None:
    below, above = REFUSED[name]

    assert of_the_laptop(tmp_path, below, above)
    assert of_the_chart(render, tmp_path, below, above)


@pytest.mark.parametrize("name", TAKEN)
def test_both_take(render: Renderer, tmp_path: Path, name: str) -> None:
    below, above = TAKEN[name]

    assert of_the_laptop(tmp_path, below, above) == ""
    assert of_the_chart(render, tmp_path, below, above) == ""


@pytest.mark.parametrize("quoted", ["'02134'", '"1116"'])
def test_text_in_quotes_arrives_as_it_is(render: Renderer, quoted: str) -> None:
    above: dict[str, Any] = helm_python.values_from_yaml(
        f"features: {{user: {{type: categorical, vocabulary: [{quoted}]}}}}"
    )
    texts = [text for name, text in render(below=ROWS, **above).configs() if "vocabulary" in text]

    assert texts
    assert all(f"- {quoted}".replace("'", '"') in text.replace("'", '"') for text in texts)


def test_a_folder_beside_the_values_file_is_the_laptops_alone(render: Renderer, tmp_path: Path) -> None:
    above = 'data: {source: {url: "file:."}}'

    assert of_the_laptop(tmp_path, SMALLEST, above) == ""
    assert "/data/source/url" in of_the_chart(render, tmp_path, SMALLEST, above)


@pytest.mark.parametrize("above", ["pserver: {config: {port: null}}", "master:\n", "model: null"])
def test_a_null_that_a_template_needs_is_refused_by_the_chart_alone(
    render: Renderer, tmp_path: Path, above: str
) -> None:
    assert of_the_laptop(tmp_path, SMALLEST, above) == ""
    assert of_the_chart(render, tmp_path, SMALLEST, above)
