"""A command whose packages are not installed, as with the wheel alone: it is listed, and names its extra whatever it is asked."""

import pytest
from typer.testing import CliRunner

from elastic_ctr.operate.cli import main
from elastic_ctr.operate.cli.main import ROLES, build


@pytest.fixture(autouse=True)
def _without_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = {"explain": ("not_there_at_all", "explain", None), "serving": ("not_there_at_all", "serving", ROLES)}
    monkeypatch.setattr(main, "COMMANDS", absent)


@pytest.mark.parametrize(
    "words",
    [[], ["values.yaml"], ["-f", "values.yaml", "--no-such-option"], ["--help"], ["up", "--dir=x", "--", "-f"]],
    ids=str,
)
@pytest.mark.parametrize(("name", "extra"), [("explain", "cube"), ("serving", "local")])
def test_the_extra_is_named_whatever_the_words_are(words: list[str], name: str, extra: str) -> None:
    done = CliRunner().invoke(build(name), [name, *words])

    assert done.exit_code == 2
    assert done.stderr == (
        f"elastic-ctr {name} needs not_there_at_all, which is not installed: install elastic-ctr's wheel with [{extra}]\n"
    )


def test_the_help_has_the_whole_name_of_the_extra() -> None:
    shown = CliRunner(env={"COLUMNS": "200"}).invoke(build(), ["--help"]).stdout

    assert "install elastic-ctr's wheel with [cube]" in shown
    assert "install elastic-ctr's wheel with [local]" in shown
