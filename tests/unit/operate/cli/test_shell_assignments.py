import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from elastic_ctr.operate.cli.shell_assignments import AssignmentRefused, ShellAssignment, read_assignments


def value(text: str) -> str:
    [assignment] = read_assignments(text).values()
    assert assignment.variable is None
    return assignment.value


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("A=20200401/00", "20200401/00"),
        ('export A="/train data"  # 前缀', "/train data"),
        ("export\tA='$HOME'", "$HOME"),
        ("  A=a'b'\"c\"d", "abcd"),
        ("A=", ""),
        ("A=a#b", "a#b"),
        ("A=a #b", "a"),
        (r'A="a\"b\$c\\d\e"', r'a"b$c\d\e'),
        (r"A=a\ b\$c", "a b$c"),
        ('A="5$"', "5$"),
        ("A=5$", "5$"),
        ('A="$\'x"', "$'x"),
        ("A=1;", "1"),
        ("A=1\r", "1"),
        ("\ufeffA=1", "1"),
        ("A=*?[x]{1,2}", "*?[x]{1,2}"),
    ],
)
def test_an_assignment_has_the_value_that_a_shell_gives_it(line: str, expected: str) -> None:
    assert value(line) == expected


def test_assignments_keep_their_order_and_lines() -> None:
    found = read_assignments("# two\nB=1\n\nexport A=2 C=3; D=4\nexport A B\n")

    assert found == {
        "B": ShellAssignment(2, "1", None),
        "A": ShellAssignment(4, "2", None),
        "C": ShellAssignment(4, "3", None),
        "D": ShellAssignment(4, "4", None),
    }


@pytest.mark.parametrize(
    ("text", "variable"),
    [
        ('A="hdfs://${IP}:9000"', "${IP}"),
        ("A=$HOME/x", "$HOME"),
        ('A="$1$@"', "$1"),
        ("A=~/x", "~"),
        ("A=$'x'", "$'"),
        ('A=$"x"', '$"'),
    ],
)
def test_a_value_with_a_variable_says_which(text: str, variable: str) -> None:
    assert read_assignments(text)["A"].variable == variable


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("A=1\nB=$(touch x)", "line 2: B holds a command"),
        ("A=`touch x`", "line 1: A holds a command"),
        ('A="`touch x`"', "A holds a command"),
        ("A=${B:-$(touch x)}", "A holds a command"),
        ("A=$((1+1))", "A holds a command"),
        ("A=$[1+1]", "A holds an expression"),
        ("A=${B", "A holds an expression"),
        ("A=1 touch x", "'touch x' is not NAME=VALUE; only assignments are read, nothing is executed"),
        ("touch x", "'touch x' is not NAME=VALUE"),
        ("export -n A", "'-n A' is not NAME=VALUE"),
        ("A+=1", "is not NAME=VALUE"),
        ("1A=1", "is not NAME=VALUE"),
        ("A=1&touch x", "A is followed by '&', which belongs to a command"),
        ("A=<(touch x)", "A is followed by '<'"),
        ("A=(1 2)", "A is followed by '('"),
        ("A='1", "the quotes around A are not closed on their line"),
        ('A="1', "the quotes around A are not closed"),
        ("A=1\\", "A goes on in the next line"),
        ("A=\x001", "is a control character"),
        ("A=1\nB=2\nexport A=1", "A stands on line 1 and again on line 3; keep one"),
    ],
)
def test_a_text_that_is_more_than_assignments_is_refused(text: str, reason: str) -> None:
    with pytest.raises(AssignmentRefused) as refused:
        read_assignments(text)

    assert reason in str(refused.value)


PIECES = st.one_of(
    st.text("abcXYZ019_/:.,%+@#-", min_size=1, max_size=6),
    st.text('ab $`"\\#;&|<>()~!*?[]{}=é历', max_size=6).map(lambda text: f"'{text}'"),
    st.text("ab '#;&|<>()~!*?[]{}=é历", max_size=6).map(lambda text: f'"{text}"'),
    st.sampled_from([r"\$", r"\ ", r"\\", r"\'", r"\"", r"\#", '"\\$"', '"\\\\"', '"\\a"', '"$"', "$."]),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PIECES, max_size=6).map("".join), st.sampled_from(["", " ", "\t# say", ";", " ; B=1"]))
def test_a_value_is_what_bash_makes_of_it(tmp_path: Path, word: str, after: str) -> None:
    (tmp_path / "data.config").write_text(f"export A={word}{after}\n", encoding="utf-8")

    said = subprocess.run(
        ["bash", "-c", '. ./data.config && printf %s "$A"'], cwd=tmp_path, capture_output=True, check=True
    ).stdout.decode()

    assert read_assignments((tmp_path / "data.config").read_text(encoding="utf-8"))["A"].value == said


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8") | st.sampled_from("AB=$`'\"\\#;&|(){}~ \n"), max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    found: dict[str, ShellAssignment] = {}
    with suppress(AssignmentRefused):
        found = read_assignments(text)

    assert all(name.isidentifier() for name in found)
