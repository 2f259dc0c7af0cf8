from pathlib import Path

import pytest

from elastic_ctr.config.load import ConfigRefused, load, read_yaml
from elastic_ctr.config.training_settings import MasterConfig


def file(folder: Path, text: str | bytes) -> Path:
    path = folder / "config.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3\n", "'a' stands on line 1 and again on line 3; keep one"),
        ("x:\n  a: 1\n  a: 1\n", "'a' stands on line 2 and again on line 3; keep one"),
        ("{a: 1, a: 2}", "'a' stands on line 1 and again on line 1"),
        ("a: [1\nb: 2\n", "config.yaml line 2 is not YAML: "),
        ("a: b: c", "line 1 is not YAML: mapping values are not allowed here"),
        ("a: !!python/object:os.system {}", "is not YAML: could not determine a constructor"),
        ("---\na: 1\n---\nb: 1\n", "is not YAML: but found another document"),
        ("- 1\n- 2\n", "holds a list where settings by name belong"),
        ("just text", "holds a str where settings by name belong"),
        ("? [a]\n: 1\n", "the key on line 1 is a list or a mapping; give it a name"),
        (b"a: \xff\xfe", "is not text in UTF-8"),
        (b"a: \x00", "is not YAML"),
    ],
)
def test_an_invalid_settings_file_is_refused_in_a_sentence_that_names_it(
    tmp_path: Path, text: str | bytes, sentence: str
) -> None:
    path = file(tmp_path, text)

    with pytest.raises(ConfigRefused) as refused:
        read_yaml(path)

    assert str(path) in str(refused.value)
    assert sentence in str(refused.value)


def test_a_file_that_is_not_there_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigRefused, match=r"none\.yaml cannot be read: No such file"):
        read_yaml(tmp_path / "none.yaml")


def test_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    assert load(MasterConfig, file(tmp_path, "")) == MasterConfig()


def test_anchors_and_merges_are_read_as_helm_reads_them(tmp_path: Path) -> None:
    path = file(tmp_path, "base: &base {a: 1, b: 2}\none:\n  <<: *base\n  b: 3\n")

    assert read_yaml(path)["one"] == {"a": 1, "b": 3}


def test_words_that_merge_or_equal_are_texts_in_a_list(tmp_path: Path) -> None:
    """Helm writes them without quotes."""
    assert read_yaml(file(tmp_path, "words: [=, <<, a]\n")) == {"words": ["=", "<<", "a"]}


def test_each_thing_wrong_is_a_line_that_begins_with_the_file(tmp_path: Path) -> None:
    path = file(tmp_path, "{port: 0, leaseSeconds: -1, what: 1}")

    with pytest.raises(ConfigRefused) as refused:
        load(MasterConfig, path)

    lines = str(refused.value).splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{path}: ") for line in lines)
