from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from elastic_ctr.cli.import_data import app
from elastic_ctr.features.importers import feasign_of


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    path = tmp_path / "clicks.csv"
    path.write_text("at,app,y\n2020-04-01 03:10:00,x,1\n2020-04-01 01:00:00,z,0\n")
    return path


def test_csv_rows_go_to_the_hours_of_their_time(clicks: Path, tmp_path: Path) -> None:
    done = call("csv", clicks, tmp_path / "out", "--label", "y", "--fields", "app", "--time", "at")

    assert done.exit_code == 0, done.output
    assert "2 of 2 rows are in 3 hours, 20200401/01 to 20200401/03" in done.output
    part = tmp_path / "out" / "20200401" / "03" / "part-00000"
    assert part.read_text() == f"1 1 {feasign_of('app', 'x')}:app\n"
    assert len(list((tmp_path / "out").rglob("donefile"))) == 3


def test_the_summary_is_json_when_asked_for(clicks: Path, tmp_path: Path) -> None:
    done = call("csv", clicks, tmp_path / "out", "--label", "y", "--fields", "app", "--json", "--start", "20200401/05")

    summary = json.loads(done.stdout)
    assert (summary["records"], summary["clicks"], summary["start"], summary["refused"]) == (2, 1, "20200401/05", {})


def test_a_column_that_is_not_there_ends_with_1_and_the_columns_there_are(clicks: Path, tmp_path: Path) -> None:
    done = call("csv", clicks, tmp_path / "out", "--label", "label", "--fields", "app")

    assert done.exit_code == 1
    assert "has no column 'label'; its columns are: at, app, y" in done.stderr
    assert not (tmp_path / "out" / "slot.conf").exists()


def test_a_folder_that_is_not_empty_is_only_replaced_when_forced(clicks: Path, tmp_path: Path) -> None:
    arguments: list[str | Path] = ["csv", clicks, tmp_path / "out", "--label", "y", "--fields", "app"]

    assert call(*arguments).exit_code == 0
    assert call(*arguments).exit_code == 1
    forced = call(*arguments, "--force")
    assert forced.exit_code == 0
    assert "deleted before: 1 hours, 20200401/00 to 20200401/00" in forced.output


def files_of(folder: Path) -> dict[str, str]:
    return {str(file.relative_to(folder)): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_later_hours_are_added_and_nothing_that_is_there_changes(clicks: Path, tmp_path: Path) -> None:
    options = ["--label", "y", "--fields", "app", "--time", "at"]
    assert call("csv", clicks, tmp_path / "out", *options).exit_code == 0
    before = files_of(tmp_path / "out")
    later = tmp_path / "later.csv"
    later.write_text("at,app,y,new\n2020-04-01T06:00:00Z,x,1,n\n")

    same = call("csv", clicks, tmp_path / "out", *options, "--append")
    slots = call("csv", later, tmp_path / "out", *options, "--fields", "app,new", "--append")
    nowhere = call("csv", later, tmp_path / "nowhere", *options, "--append")
    both = call("csv", later, tmp_path / "out", *options, "--append", "--force")
    unchanged = files_of(tmp_path / "out")
    added = call("csv", later, tmp_path / "out", *options, "--append")
    after = files_of(tmp_path / "out")

    assert [each.exit_code for each in (same, slots, nowhere, both, added)] == [1, 1, 1, 1, 0]
    assert "has hours up to 20200401/03; --append adds later ones" in same.stderr
    assert "has the slots app, and these rows app, new; they must be the same" in slots.stderr
    assert "has no slot.conf" in nowhere.stderr
    assert unchanged == before
    new = {name: text for name, text in after.items() if name not in before}
    assert {name: after[name] for name in before} == before
    # The hours between are empty ones: training goes through them one by one.
    assert new == {
        "20200401/04/part-00000": "", "20200401/04/donefile": "",
        "20200401/05/part-00000": "", "20200401/05/donefile": "",
        "20200401/06/part-00000": f"1 1 {feasign_of('app', 'x')}:app\n", "20200401/06/donefile": "",
    }  # fmt: skip
    assert "values.yaml is as it was" in added.output


def test_every_column_but_some_may_become_a_slot_and_never_label_or_time(clicks: Path, tmp_path: Path) -> None:
    clicks.write_text("at,app,y,id\n2020-04-01 03:10:00,x,1,7\n")
    but = call("csv", clicks, tmp_path / "out", "--label", "y", "--except", "id", "--time", "at")
    label = call("csv", clicks, tmp_path / "other", "--label", "y", "--fields", "app,y")
    neither = call("csv", clicks, tmp_path / "other", "--label", "y")
    unknown = call("csv", clicks, tmp_path / "other", "--label", "y", "--except", "idd")

    assert but.exit_code == 0, but.output
    assert (tmp_path / "out" / "slot.conf").read_text() == "app\n"
    assert [each.exit_code for each in (label, neither, unknown)] == [1, 1, 1]
    assert "y cannot be a feature: it is the label" in label.stderr
    assert "say either --fields, or --except" in neither.stderr
    assert "has no column 'idd'; its columns are: at, app, y, id" in unknown.stderr


def test_a_long_import_says_how_far_it_is(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text("y,a\n" + "1,x\n" * 100_001)

    done = call("csv", tmp_path / "long.csv", tmp_path / "out", "--label", "y", "--fields", "a")

    assert done.stderr.splitlines() == [f"100,000 rows of {tmp_path / 'long.csv'} are read"]


def test_more_refused_rows_than_allowed_end_with_1(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("y,a\n1,x\n?,x\n")
    arguments: list[str | Path] = ["csv", tmp_path / "in.csv", tmp_path / "out", "--label", "y", "--fields", "a"]

    assert "1 of 2 rows were refused" in call(*arguments).stderr
    allowed = call(*arguments, "--max-refused-share", "0.5")
    assert allowed.exit_code == 0
    assert "1 rows were refused: label 1. First:" in allowed.output
    assert "line 3: the label '?' is not 1, 0, -1, true or false" in allowed.output


def test_tabs_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_text("1\tx\n")

    done = call(
        "csv",
        tmp_path / "in.csv",
        tmp_path / "out",
        "--delimiter",
        "tab",
        "--no-header",
        "--label",
        "0",
        "--fields",
        "1",
    )

    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("delimiter", "options", "value"),
    [
        (",", [], "x"),
        ("\t", ["--delimiter", "tab"], '"x"'),
        (",", ["--quote", "none"], '"x"'),
        ("\t", ["--delimiter", "tab", "--quote", '"'], "x"),
    ],
)
def test_quotes_are_around_values_between_commas_and_part_of_them_between_tabs(
    tmp_path: Path, delimiter: str, options: list[str], value: str
) -> None:
    (tmp_path / "in.csv").write_text(f'y{delimiter}a\n1{delimiter}"x"\n')

    done = call("csv", tmp_path / "in.csv", tmp_path / "out", "--label", "y", "--fields", "a", *options)

    assert done.exit_code == 0, done.output
    part = tmp_path / "out" / "20200401" / "00" / "part-00000"
    assert part.read_text() == f"1 1 {feasign_of('a', value)}:a\n"


def test_time_and_rows_per_hour_exclude_each_other(clicks: Path, tmp_path: Path) -> None:
    done = call(
        "csv", clicks, tmp_path / "o", "--label", "y", "--fields", "app", "--time", "at", "--rows-per-hour", "5"
    )

    assert done.exit_code == 1
    assert "exclude each other" in done.stderr


def test_criteo_and_libfm_files_are_imported(tmp_path: Path) -> None:
    (tmp_path / "criteo").write_text("\t".join(["1", *["5"] * 13, *["ab"] * 26]) + "\n")
    (tmp_path / "libfm").write_text("-1 5:1\n1 6:1\n")

    for kind, slots in (("criteo", 39), ("libfm", 1)):
        done = call(kind, tmp_path / kind, tmp_path / f"{kind}-out", "--rows-per-hour", "1", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["slots"] == slots


def test_a_damaged_gz_file_ends_with_1_and_its_name(tmp_path: Path) -> None:
    (tmp_path / "in.csv.gz").write_bytes(b"\x1f\x8b\x08\x00 broken")

    done = call("csv", tmp_path / "in.csv.gz", tmp_path / "out", "--label", "y", "--fields", "a")

    assert done.exit_code == 1
    assert "in.csv.gz is damaged or cut off" in done.stderr


@pytest.mark.parametrize("command", ["csv", "criteo", "libfm"])
def test_every_option_is_explained(command: str) -> None:
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})

    assert done.exit_code == 0
    assert "--max-refused-share" in done.output
    assert "Print the summary as JSON." in done.output
