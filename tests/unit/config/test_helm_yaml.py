"""A values file is read as Helm reads it: the library that renders the chart is asked for the same text."""

import helm_python
import pytest
import yaml

from elastic_ctr.config.helm_yaml import Dumper, Loader, NotForHelm

SCALARS = [
    *[
        "02134",
        "0o17",
        "0O17",
        "0x1F",
        "0X1f",
        "0b11",
        "-0x1F",
        "+0x1f",
        "10:30",
        "190:20:30.15",
        "1e3",
        "1E3",
        "1.e3",
        "1e+3",
        "12e03",
        "1_000",
        "0x_1",
        "1__0",
        "_1",
        "+5",
        "-0",
        "-5",
    ],
    *[
        ".5",
        "-.5",
        "+.5",
        ".5e3",
        "._5",
        "5.",
        "1.0",
        "1.50",
        "-0.0",
        "00",
        "08",
        "09",
        "0_7",
        "0_8",
        "0x",
        "0o",
        "0o8",
        "0b2",
        "1e400",
        "1e-400",
        "1e-7",
        "5_",
        "-",
        "+",
        ".",
        ".e3",
        "1e",
        "1e+",
        "5.e",
        "1.2.3",
    ],
    *[
        "yes",
        "no",
        "on",
        "off",
        "y",
        "n",
        "Yes",
        "NO",
        "On",
        "true",
        "TRUE",
        "tRUE",
        "false",
        "null",
        "Null",
        "NULL",
        "nULL",
        "~",
        "nan",
        "NaN",
        "inf",
        "Infinity",
        "=",
        "<<",
        "2020-01-01",
        "é",
    ],
    *[
        "2020-01-01T00:00:00Z",
        "20200401/00",
        "9007199254740991",
        "1000000.0",
        "685.230_15e+03",
        "--5",
        "1,000",
        "1",
        "0",
    ],
    *("!!str 5", "!!int '5'", "!!float 3", "!!timestamp 2020-01-01", "'02134'", '"y"', "''", "a b"),
]


@pytest.mark.parametrize("scalar", SCALARS)
def test_a_scalar_is_what_it_is_to_helm(scalar: str) -> None:
    text = f"a: [x, {scalar}]"

    read = yaml.load(text, Loader=Loader)

    assert repr(read) == repr(helm_python.values_from_yaml(text))


@pytest.mark.parametrize(
    "key", ["y", "'y'", "02134", "'02134'", "1e3", "1.5", "1.0", "10:30", "2020-01-01", ".inf", "on", "true"]
)
def test_a_key_is_what_it_is_to_helm(key: str) -> None:
    assert yaml.load(f"{key}: 1", Loader=Loader) == helm_python.values_from_yaml(f"{key}: 1")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: .inf", ".inf on line 1 is no number to Helm; write a finite one"),
        ("a: -.INF", "-.INF on line 1 is no number"),
        ("b: 1\na: .nan", ".nan on line 2 is no number"),
        ("~: 1", "the key on line 1 is null; give it a name"),
        ('a: "\\ud83d\\ude00"', "the text on line 1 has half a character; write the character itself"),
    ],
)
def test_yaml_that_helm_refuses_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(helm_python.HelmValuesError):
        helm_python.values_from_yaml(text)

    with pytest.raises(NotForHelm) as refused:
        yaml.load(text, Loader=Loader)

    assert sentence in str(refused.value)


@pytest.mark.parametrize("text", [*SCALARS, "a: b", "#", "", " ", "\n", "é", "null", ".inf"])
def test_text_that_is_written_is_read_back_as_that_text_by_both(text: str) -> None:
    written = yaml.dump({"a": [text], "n": 5, "x": 1.5, "b": True, "none": None}, Dumper=Dumper)

    assert yaml.load(written, Loader=Loader) == {"a": [text], "n": 5, "x": 1.5, "b": True, "none": None}
    assert helm_python.values_from_yaml(written) == yaml.load(written, Loader=Loader)
