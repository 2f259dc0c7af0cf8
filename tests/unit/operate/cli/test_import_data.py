from __future__ import annotations

import errno
import json
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from elastic_ctr.config.load import read_yaml
from elastic_ctr.formats.hours import HourTree
from elastic_ctr.operate.cli.given_values import load_values
from elastic_ctr.operate.cli.import_data import app


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def clicks(tmp_path: Path) -> Path:
    path = tmp_path / "clicks.csv"
    path.write_text("at,app,y\n2020-04-01 03:10:00,x,1\n2020-04-01 01:00:00,z,0\n")
    return path


def test_csv_rows_go_to_the_hours_of_their_time(clicks: Path, tmp_path: Path) -> None:
    done = call("csv", clicks, tmp_path / "out", "--label", "y", "--time", "at")

    assert done.exit_code == 0, done.output
    assert "2 of 2 rows are in 3 hours, 20200401/01 to 20200401/03" in done.output
    assert "2 shows, 1 clicks, 1 features (values.yaml)" in done.output
    part = tmp_path / "out" / "20200401" / "03" / "part-00000"
    assert part.read_text() == "at,app,y\n2020-04-01 03:10:00,x,1\n"
    assert read_yaml(tmp_path / "out" / "values.yaml")["features"] == {"app": {"type": "categorical"}}
    assert len(list((tmp_path / "out").rglob("donefile"))) == 3


def test_the_summary_is_json_with_the_option_json(clicks: Path, tmp_path: Path) -> None:
    done = call("csv", clicks, tmp_path / "out", "--label", "y", "--fields", "app", "--json", "--start", "20200401/05")

    summary = json.loads(done.stdout)
    assert (summary["records"], summary["clicks"], summary["start"], summary["refused"]) == (2, 1, "20200401/05", {})


def test_a_column_that_is_not_there_ends_with_1_and_the_columns_there_are(clicks: Path, tmp_path: Path) -> None:
    done = call("csv", clicks, tmp_path / "out", "--label", "label", "--fields", "app")

    assert done.exit_code == 1
    assert "has no column 'label'; its columns are: at, app, y" in done.stderr
    assert not (tmp_path / "out" / "values.yaml").exists()


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
    lacking = call(
        "csv",
        written(tmp_path, "b.csv", "at,apps,y\n2020-04-01T06:00:00Z,x,1\n"),
        tmp_path / "out",
        "--label",
        "y",
        "--time",
        "at",
        "--append",
    )
    other = call(
        "csv", later, tmp_path / "out", "--show", "y", "--click", "new", "--max-refused-share", "1", "--append"
    )
    nowhere = call("csv", later, tmp_path / "nowhere", *options, "--append")
    both = call("csv", later, tmp_path / "out", *options, "--append", "--force")
    unchanged = files_of(tmp_path / "out")
    added = call("csv", later, tmp_path / "out", *options, "--append")
    after = files_of(tmp_path / "out")

    assert [each.exit_code for each in (same, lacking, other, nowhere, both, added)] == [1, 1, 1, 1, 1, 0]
    assert "has hours up to 20200401/03; --append adds later ones" in same.stderr
    assert "has the feature app of the column 'app', which these rows lack; they have at, apps, y" in lacking.stderr
    assert "has no values.yaml" in nowhere.stderr
    assert unchanged == before
    new = {name: text for name, text in after.items() if name not in before}
    assert {name: after[name] for name in before} == before
    # The hours between are empty ones: training goes through them one by one.
    assert new == {
        "20200401/04/part-00000": "", "20200401/04/donefile": "",
        "20200401/05/part-00000": "", "20200401/05/donefile": "",
        "20200401/06/part-00000": "at,app,y,new\n2020-04-01T06:00:00Z,x,1,n\n", "20200401/06/donefile": "",
    }  # fmt: skip
    assert "values.yaml is as it was" in added.output


def written(folder: Path, name: str, text: str) -> Path:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


@pytest.mark.parametrize("minutes", [15, 90, 288])
def test_rows_are_not_added_to_folders_that_are_no_whole_hours(clicks: Path, tmp_path: Path, minutes: int) -> None:
    assert call("csv", clicks, tmp_path / "out", "--label", "y").exit_code == 0
    values = tmp_path / "out" / "values.yaml"
    values.write_text(values.read_text().replace("data:\n", f"data:\n  splitInterval: {minutes}\n"))

    added = call("csv", clicks, tmp_path / "out", "--label", "y", "--start", "20200402/00", "--append")

    assert added.exit_code == 1
    assert f"has data.splitInterval {minutes}, and an import writes whole hours" in added.stderr


def test_rows_of_another_kind_are_not_added(clicks: Path, tmp_path: Path) -> None:
    assert call("csv", clicks, tmp_path / "out", "--label", "y").exit_code == 0
    tabs = written(tmp_path, "tabs", "at\tapp\ty\nx\tx\t1\n")

    tsv = call(
        "csv", tabs, tmp_path / "out", "--label", "y", "--delimiter", "tab", "--start", "20200402/00", "--append"
    )
    label = call("csv", clicks, tmp_path / "out", "--label", "app", "--max-refused-share", "1", "--append")
    clicked = written(tmp_path, "in.libfm", "1 3:1\n")
    libfm = call("libfm", clicked, tmp_path / "out", "--start", "20200402/00", "--append")

    assert [each.exit_code for each in (tsv, label, libfm)] == [1, 1, 1]
    assert "has data.format csv, and these rows tsv; they must be the same" in tsv.stderr
    assert "has no slot.conf: it holds no lines of feasigns" in libfm.stderr


def test_hours_that_are_there_only_get_a_values_file(tmp_path: Path) -> None:
    out = tmp_path / "hours"
    for hour, row in (("00", "1,u1,1.5"), ("01", "0,u2,2.5")):
        written(out, f"20200401/{hour}/rows.csv", f"click,user,price\n{row}\n")
    written(out, "20200401/00/donefile", "")
    before = files_of(out)

    done = call("csv", out, "--label", "click")
    again = call("csv", out, "--label", "click")
    forced = call("csv", out, "--label", "click", "--except", "price", "--force", "--json")

    assert done.exit_code == 0, done.output
    assert f"{out / 'values.yaml'} trains 2 folders, 20200401/00 to 20200401/01, with 2 features" in done.output
    assert f"1 of them have no donefile: training waits for it, from {out / '20200401' / '01'} on" in done.output
    after = files_of(out)
    assert after.keys() - before.keys() == {"values.yaml"}
    assert {name: after[name] for name in before} == before
    assert again.exit_code == 1
    assert "is there; say --force to write it anew" in again.stderr
    assert json.loads(forced.stdout) == {
        "folders": 2, "start": "20200401/00", "end": "20200401/01", "features": 1, "withoutDonefile": 1,
    }  # fmt: skip
    found = load_values([out / "values.yaml"], None)
    assert (found.data.start, found.data.end, found.data.format) == ("20200401/00", "20200401/01", "csv")
    assert found.features is not None
    assert list(found.features.root) == ["user"]


def test_folders_of_minutes_are_their_interval(tmp_path: Path) -> None:
    for minutes in ("0000", "0015", "0030"):
        written(tmp_path, f"20200401/{minutes}/part-0", "click,user\n1,u1\n")

    assert call("csv", tmp_path, "--label", "click").exit_code == 0
    found = load_values([tmp_path / "values.yaml"], None)
    assert (found.data.split_interval, found.data.start, found.data.end) == (15, "20200401/0000", "20200401/0030")


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"notes.txt": ""}, "has no folder YYYYMMDD/HH; name the files to import before it"),
        ({"20200401/00/p": "click,user\n-1,u\n"}, "has labels other than 0 and 1"),
        ({"20200401/00/p": "click,user\n?,u\n"}, "1 of 1 rows were refused (1 for label)"),
        ({"20200401/00/p": "click,user\n1,u\n", "20200401/00/q": "user,click\nu,1\n"}, "other columns than the first file"),
        ({"20200401/00/p": "click,user\n"}, "there is no row in"),
        ({"20200401/00/p": "clicks,user\n1,u\n"}, "has no column 'click'"),
    ],
)  # fmt: skip
def test_hours_that_cannot_be_trained_as_they_are_are_refused(
    tmp_path: Path, files: dict[str, str], reason: str
) -> None:
    for name, text in files.items():
        written(tmp_path, name, text)

    done = call("csv", tmp_path, "--label", "click")

    assert done.exit_code == 1
    assert reason in done.stderr
    assert not (tmp_path / "values.yaml").exists()


def test_every_column_but_some_becomes_a_feature_and_never_label_or_time(clicks: Path, tmp_path: Path) -> None:
    clicks.write_text("at,app,y,id\n2020-04-01 03:10:00,x,1,7\n")
    but = call("csv", clicks, tmp_path / "out", "--label", "y", "--except", "id", "--time", "at")
    label = call("csv", clicks, tmp_path / "other", "--label", "y", "--fields", "app,y")
    both = call("csv", clicks, tmp_path / "other", "--label", "y", "--fields", "app", "--except", "id")
    unknown = call("csv", clicks, tmp_path / "other", "--label", "y", "--except", "idd")

    assert but.exit_code == 0, but.output
    assert read_yaml(tmp_path / "out" / "values.yaml")["features"] == {"app": {"type": "categorical"}}
    assert [each.exit_code for each in (label, both, unknown)] == [1, 1, 1]
    assert "y cannot be a feature: it is the label" in label.stderr
    assert "say either which columns become features, or which become none" in both.stderr
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
    ("delimiter", "options", "row"),
    [
        (",", [], '1,"x"'),
        ("\t", ["--delimiter", "tab"], '1\t"x"'),
        (",", ["--quote", "none"], '1,"""x"""'),
        ("\t", ["--delimiter", "tab", "--quote", '"'], "1,x"),
    ],
)
def test_quotes_are_around_values_between_commas_and_part_of_them_between_tabs(
    tmp_path: Path, delimiter: str, options: list[str], row: str
) -> None:
    (tmp_path / "in.csv").write_text(f'y{delimiter}a\n1{delimiter}"x"\n')

    done = call("csv", tmp_path / "in.csv", tmp_path / "out", "--label", "y", "--fields", "a", *options)

    assert done.exit_code == 0, done.output
    part = tmp_path / "out" / "20200401" / "00" / "part-00000"
    assert part.read_text().splitlines()[1] == row


def test_time_and_rows_per_hour_exclude_each_other(clicks: Path, tmp_path: Path) -> None:
    done = call(
        "csv", clicks, tmp_path / "o", "--label", "y", "--fields", "app", "--time", "at", "--rows-per-hour", "5"
    )

    assert done.exit_code == 1
    assert "exclude each other" in done.stderr


def test_criteo_and_libfm_files_are_imported(tmp_path: Path) -> None:
    (tmp_path / "criteo").write_text("\t".join(["1", *["5"] * 13, *["ab"] * 26]) + "\n")
    (tmp_path / "libfm").write_text("-1 5:1\n1 6:1\n")

    for kind, features in (("criteo", 39), ("libfm", 1)):
        done = call(kind, tmp_path / kind, tmp_path / f"{kind}-out", "--rows-per-hour", "1", "--json")
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["features"] == features
        assert load_values([tmp_path / f"{kind}-out" / "values.yaml"], None).data.start


def test_a_damaged_gz_file_ends_with_1_and_its_name(tmp_path: Path) -> None:
    (tmp_path / "in.csv.gz").write_bytes(b"\x1f\x8b\x08\x00 broken")

    done = call("csv", tmp_path / "in.csv.gz", tmp_path / "out", "--label", "y", "--fields", "a")

    assert done.exit_code == 1
    assert "in.csv.gz is damaged or cut off" in done.stderr


@pytest.mark.parametrize("command", ["csv", "tsv", "jsonl", "parquet", "criteo", "libfm", "libffm"])
def test_every_option_is_explained(command: str) -> None:
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"})

    assert done.exit_code == 0
    assert "--max-refused-share" in done.output
    assert "Print the summary as JSON." in done.output


def test_a_guess_that_may_surprise_is_a_note_beside_the_summary(tmp_path: Path) -> None:
    rows = "".join(f"u{row},{row}.5,True,1\n" for row in range(20)) + "u,NaN,False,0\n"
    file = written(tmp_path, "a.csv", "user,price,new,click\n" + rows)

    done = call("csv", file, tmp_path / "out", "--label", "click", "--json")
    again = call("csv", tmp_path / "out", "--label", "click", "--force")

    notes = [
        "note: the column 'price' has 'NaN' (1 times), which stands for a missing value; data.missing lists such words.",
        "note: the column 'new' is read as text, and a request must send its texts as they are: 'False' in quotes, not false.",
    ]
    assert done.stderr.splitlines()[-2:] == notes
    assert json.loads(done.stdout)["records"] == 21
    assert again.stderr.splitlines()[-2:] == notes


def test_a_file_whose_every_name_is_beyond_ascii_is_imported_whole(tmp_path: Path) -> None:
    done = call("csv", written(tmp_path, "a.csv", "价格,年龄,click\na,b,1\n"), tmp_path / "out", "--label", "click")

    assert done.exit_code == 0, done.output
    assert {each["column"] for each in read_yaml(tmp_path / "out" / "values.yaml")["features"].values()} == {
        "价格",
        "年龄",
    }


def test_the_summary_has_the_type_of_each_column_and_the_next_command(tmp_path: Path) -> None:
    rows = "".join(f"{row % 2},u{row % 3},{row}.5,{row}\n" for row in range(30))
    file, out = written(tmp_path, "a.csv", "y,user,price,id\n" + rows), tmp_path / "my hours"

    done = call("csv", file, out, "--label", "y", "--rows-per-hour", "15")

    assert "  user: type: categorical (3 different values)\n" in done.stdout
    assert "  price: type: numeric (numbers from 0.5 to 29.5)\n" in done.stdout
    assert "  id: left out, 30 of 30 values differ, as ids of rows do" in done.stdout
    assert "training makes 2 passes of about 15 rows" in done.stdout
    assert f"next: elastic-ctr local up -f '{out}/values.yaml'" in done.stdout


def test_the_printed_command_extends_the_values_file_to_the_appended_hours(tmp_path: Path) -> None:
    file, out = written(tmp_path, "a.csv", "y,a\n1,x\n"), tmp_path / "hours"
    call("csv", file, out, "--label", "y")

    done = call("csv", file, out, "--label", "y", "--append", "--start", "20200401/05")
    [command] = [line.removeprefix("next: ") for line in done.stdout.splitlines() if line.startswith("next: ")]
    move, then = command.split(" && ")
    subprocess.run(["bash", "-c", move], check=True)

    assert load_values([out / "values.yaml"], None).data.end == "20200401/05"
    assert then == f"elastic-ctr local up -f {out}/values.yaml"


def test_json_lines_and_tabs_have_commands_of_their_own(tmp_path: Path) -> None:
    lines = written(tmp_path, "a.jsonl", '{"y": "yes", "a": 18446744073709551615}\n{"y": "no", "a": 7}\n')
    tabs = written(tmp_path, "a.tsv", "y\ta\n1\tcaf\u00e9\n")

    for command, file, options in (("jsonl", lines, ["--positive", "yes"]), ("tsv", tabs, ["--encoding", "utf-8"])):
        done = call(command, file, tmp_path / command, "--label", "y", *options)
        assert done.exit_code == 0, done.output
        assert load_values([tmp_path / command / "values.yaml"], None).data.format == command


def test_folders_of_json_lines_get_a_values_file(tmp_path: Path) -> None:
    hour = tmp_path / "hours" / "20200401" / "00"
    hour.mkdir(parents=True)
    written(hour, "part-0", '{"y": 1, "a": "x"}\n')

    done = call("jsonl", tmp_path / "hours", "--label", "y")

    assert done.exit_code == 0, done.output
    assert load_values([tmp_path / "hours" / "values.yaml"], None).data.format == "jsonl"


def test_a_disk_that_is_full_is_named_with_the_way_out(
    clicks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(HourTree, "_stage", full)

    done = call("csv", clicks, tmp_path / "out", "--label", "y", "--fields", "app")

    assert done.exit_code == 1
    assert f"{tmp_path / 'out'}: the disk is full (No space left on device); free some space" in done.stderr
    assert "name a folder on another disk" in done.stderr


def test_a_file_instead_of_a_folder_is_named(clicks: Path) -> None:
    done = call("csv", clicks, "--label", "y")

    assert done.exit_code == 1
    assert "clicks.csv is a file; name the folder to write behind it, such as hours" in done.stderr
