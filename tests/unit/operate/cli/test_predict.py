import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner, Result

from answering import Said, saying
from elastic_ctr.operate.cli.main import build
from operate.cli.fake_kubectl import FakeKubectl
from operate.cli.test_check_serving import metadata


def call(*words: object, given: str) -> Result:
    return CliRunner().invoke(build("predict"), ["predict", *map(str, words)], input=given)


def answering(method: str, path: str, body: Any) -> Said:
    if not path.endswith("/infer"):
        return 200, metadata(7)
    lines = body["inputs"][0]["data"]
    return 200, {
        "outputs": [
            {"name": "probability", "data": [0.25] * len(lines)},
            {"name": "version", "data": [7] * len(lines)},
        ]
    }


def test_predictions_of_a_release_come_through_kubectl(kubectl: FakeKubectl) -> None:
    with saying(answering) as address:
        kubectl.say(forward={"ctr-serving-7c4d-x1:8400": int(address.partition(":")[2])})
        done = call("-", "--namespace", "ns", given="1 0 5:0\n4 1 6:7\n")

    assert (done.exit_code, done.stdout) == (0, "0.25\n0.25\n")
    assert "2 lines, 5 shows, 1 clicks" in done.stderr


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["-n", "ns", "--address", "x:1"], "say either --namespace, or --address: not both"),
        (["--release", "other"], "--release and --context say which release of a --namespace is meant"),
        (["-n", "ns"], "kubectl port-forward to ctr-serving-7c4d-x1: error: nobody forwards"),
    ],
)
def test_a_serving_that_cannot_be_chosen_or_reached_is_exit_code_2_with_a_reason(
    words: list[str], reason: str, kubectl: FakeKubectl
) -> None:
    done = call("-", *words, given="1 0 5:0\n")

    assert (done.exit_code, done.stdout) == (2, "")
    assert reason in done.stderr


def test_an_answer_of_another_program_is_exit_code_2_with_a_reason() -> None:
    with saying(lambda *_: (200, {})) as address:
        done = call("-", "--address", address, given="1 0 5:0\n")

    assert (done.exit_code, done.stdout) == (2, "")
    assert f"{address} does not answer as the Open Inference Protocol says" in done.stderr


COLUMNS = {"user": "BYTES", "tags": "BYTES", "price": "FP64", "age": "INT64"}
ROWS = "click,user,price,age,tags,unread\n1,u1,3.5,7,a|b,x\n0,u2,,8,,y\n"
AS_JSON = [{"user": "u1", "tags": "a|b", "price": 3.5, "age": 7}, {"user": "u2", "age": 8}]


class RowServer:
    """Answers as serving does for a model of `columns`: 0.01 times the price, 0.5 without one."""

    def __init__(self, columns: dict[str, str] = COLUMNS) -> None:
        self.columns = columns
        self.asked: list[list[Any]] = []

    def __call__(self, _: str, path: str, body: Any) -> Said:
        if not path.endswith(":predict"):
            inputs = [{"name": name, "datatype": kind, "shape": [-1]} for name, kind in self.columns.items()]
            return 200, {"name": "ctr", "versions": ["7"], "inputs": inputs}
        self.asked.append(body["instances"])
        for number, row in enumerate(body["instances"]):
            if row.get("user") == "no":
                return 400, {"error": f"instances[{number}].user has more than 4096 keys; shorten its lists"}
            if row.get("user") == "none":
                return 500, {"error": f"instances[{number}]: the probability by version 7 is no number"}
        found = [row["price"] / 100 if "price" in row else 0.5 for row in body["instances"]]
        return 200, {"predictions": found, "model_version": "7"}


def of_rows(file: Path | str, *words: object, columns: dict[str, str] = COLUMNS) -> tuple[Result, list[Any]]:
    """What is printed, and the rows of all requests."""
    server = RowServer(columns)
    with saying(server) as address:
        done = call(file, "--address", address, *words, given="")
    return done, [row for rows in server.asked for row in rows]


def written(folder: Path, name: str, text: str | bytes = ROWS) -> Path:
    data = text.encode() if isinstance(text, str) else text
    (folder / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    return folder / name


def of_release(file: Path, kubectl: FakeKubectl, **world: Any) -> Result:
    with saying(RowServer()) as address:
        kubectl.say(forward={"ctr-serving-7c4d-x1:8400": int(address.partition(":")[2])}, **world)
        return call(file, "--namespace", "ns", given="")


def test_words_for_a_missing_number_are_those_of_the_release(tmp_path: Path, kubectl: FakeKubectl) -> None:
    file = written(tmp_path, "rows.csv", "click,user,price,age,tags\n1,u1,absent,7,a\n")
    config = {
        "metadata": {"name": "ctr-scoring"},
        "data": {"scoring.config.yaml": "data: {path: /, missing: [absent], keyOfALaterRelease: 1}\nscoring: {}\n"},
    }

    known = of_release(
        file, kubectl, configmaps=[{"metadata": {"name": "ctr-files"}, "data": {"nginx.conf": ""}}, config]
    )
    unknown = of_release(file, kubectl, configmaps=[])

    assert (known.exit_code, known.stdout) == (0, "0.5\n")
    assert (unknown.exit_code, unknown.stdout) == (1, "nan\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("data: {missing: [absent]\n", "scoring.config.yaml of ConfigMap ctr-scoring line 2 is not YAML: "),
        (
            "data: " + "[" * 10_000,
            "scoring.config.yaml of ConfigMap ctr-scoring holds something that cannot be a setting",
        ),
        (
            "data: 1\ndata: 2",
            "scoring.config.yaml of ConfigMap ctr-scoring: 'data' stands on line 1 and again on line 2",
        ),
        ("- data", "scoring.config.yaml of ConfigMap ctr-scoring holds a list where settings by name belong"),
        ("data: {missing: 7}", "scoring.config.yaml of ConfigMap ctr-scoring: missing: "),
    ],
)
def test_words_of_a_release_that_cannot_be_read_are_the_usual_ones_with_the_reason(
    tmp_path: Path, kubectl: FakeKubectl, text: str, reason: str
) -> None:
    file = written(tmp_path, "rows.csv", "click,user,price,age,tags\n1,u1,NULL,7,a\n")
    config = {"metadata": {"name": "ctr-scoring"}, "data": {"scoring.config.yaml": text}}

    done = of_release(file, kubectl, configmaps=[config])

    assert (done.exit_code, done.stdout) == (0, "0.5\n")
    assert f"data.missing of the release is unknown: {reason}" in done.stderr
    assert "; the usual words are missing numbers" in done.stderr


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz", "rows.tsv"])
def test_rows_of_text_are_sent_as_rows_of_the_columns_that_the_model_reads(tmp_path: Path, name: str) -> None:
    text = ROWS.replace(",", "\t") if "tsv" in name else ROWS

    done, asked = of_rows(written(tmp_path, name, text))

    assert (done.exit_code, done.stdout, done.stderr) == (0, "0.035\n0.5\n", "")
    assert asked == AS_JSON


def test_a_format_is_named_where_the_name_of_the_file_does_not_say_it(tmp_path: Path) -> None:
    file = written(tmp_path, "part-00000")

    done, _ = of_rows(file, "--format", "csv")
    without, _ = of_rows(file)

    assert done.stdout == "0.035\n0.5\n"
    assert (without.exit_code, without.stdout) == (2, "")
    assert f"{file} does not end in .csv, .tsv, .jsonl, .parquet; say --format" in without.stderr


def test_columns_name_those_of_a_file_without_header(tmp_path: Path) -> None:
    header, _, rows = ROWS.partition("\n")

    done, asked = of_rows(written(tmp_path, "rows.csv", rows), "--columns", header)

    assert (done.exit_code, asked) == (0, AS_JSON)


def test_rows_of_parquet_are_sent_in_their_order_with_lists_as_lists(tmp_path: Path) -> None:
    table = {"user": ["u1", None], "tags": [["a", "b"], ["c"]], "price": [3.5, None], "age": [7, 8], "click": [1, 0]}
    pq.write_table(pa.table(table), tmp_path / "rows.parquet")

    done, asked = of_rows(tmp_path / "rows.parquet", "--label", "click")

    assert (done.exit_code, done.stdout) == (0, "0.035\n0.5\n")
    assert asked == [{"user": "u1", "tags": ["a", "b"], "price": 3.5, "age": 7}, {"tags": "c", "age": 8}]


def test_rows_of_json_lines_may_lack_columns_and_have_others(tmp_path: Path) -> None:
    lines = [
        {"user": "u1", "tags": ["a", "b"], "price": 3.5, "age": 7, "other": {"x": 1}},
        {"user": "u2", "age": 8, "price": None},
        {"user": 5, "price": "much"},
        {"user": 5, "tags": "c"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)

    done, asked = of_rows(written(tmp_path, "rows.jsonl.gz", text))

    assert (done.exit_code, done.stdout) == (1, "0.035\n0.5\nnan\n0.5\n")
    assert asked == [
        {"user": "u1", "tags": ["a", "b"], "price": 3.5, "age": 7},
        {"user": "u2", "age": 8},
        {"user": "5", "tags": "c"},
    ]
    assert done.stderr.startswith("row 3: ")


def test_a_label_gives_auc_and_logloss_as_show_and_click_do(tmp_path: Path) -> None:
    file = written(tmp_path, "rows.csv", "click,seen,user,tags,price,age\n1,1,u,,70,1\n0,3,u,,10,1\n")

    plain, _ = of_rows(file, "--label", "click")
    counted, _ = of_rows(file, "--label", "click", "--shows", "seen")
    without, _ = of_rows(file)

    assert "2 rows, 2 shows, 1 clicks: AUC 1.000000, logloss 0.231018" in plain.stderr
    assert "2 rows, 4 shows, 1 clicks: AUC 1.000000, logloss 0.168189" in counted.stderr
    assert without.stderr == ""


BAD = "user,tags,price,age\nu1,,1,1\nu2,,x,1\n\nu3,,3,1\nu4,,4,1,9\nno,,5,1\nu5,,6,1.5\nu6,,7,\n"


def test_bad_rows_get_nan_in_their_place_and_a_sentence_each(tmp_path: Path) -> None:
    done, _ = of_rows(written(tmp_path, "rows.csv", BAD))

    assert (done.exit_code, done.stdout.split()) == (
        1,
        ["0.01", "nan", "nan", "0.03", "nan", "nan", "nan", "0.07"],
    )
    assert done.stderr.splitlines() == [
        "row 2: the column 'price' is 'x', which is not a decimal number such as -1.5e3.",
        "row 3: the line holds nothing.",
        "row 5: the row has 5 columns, and the file has 4.",
        "row 6: serving refuses instances[2].user has more than 4096 keys; shorten its lists",
        "row 7: the column 'age' is '1.5'; read as a number and as text it must be whole and below 2^53: give the category `round`.",
    ]


def test_a_row_that_has_no_probability_gets_nan_and_the_others_are_answered(tmp_path: Path) -> None:
    done, _ = of_rows(written(tmp_path, "rows.csv", "user,tags,price,age\nu1,,1,1\nnone,,5,1\nu2,,3,1\n"))

    assert (done.exit_code, done.stdout.split()) == (1, ["0.01", "nan", "0.03"])
    assert done.stderr == "row 2: serving refuses instances[1]: the probability by version 7 is no number\n"


def test_with_json_each_row_has_its_number_and_version(tmp_path: Path) -> None:
    done, _ = of_rows(written(tmp_path, "rows.csv", BAD), "--json", "--batch", "2")

    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["row"] for each in answers] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert answers[0] == {"row": 1, "probability": 0.01, "version": 7}
    assert answers[1] == {"row": 2, "probability": None, "version": None}


@pytest.mark.parametrize(
    ("text", "words", "reason"),
    [
        ("user,tags,age\nu,,1\n", [], "lacks the column 'price'; it has 'user', 'tags', 'age'."),
        ("user,tags,price,price,age\n", [], "has 2 columns with the name 'price'"),
        (ROWS, ["--label", "clicked"], "lacks the column 'clicked'"),
        (ROWS, ["--shows", "click"], "shows 'click' stands without a label"),
        (ROWS, ["--format", "xlsx"], "--format xlsx is none of csv, tsv, jsonl, parquet"),
        (ROWS, ["--format", "reader"], "--format reader is none of csv"),
        (ROWS, ["--format", "parquet", "--columns", "a"], "--columns is for csv and tsv"),
        (ROWS, ["--format", "parquet"], "rows.csv is damaged or cut off"),
        (ROWS, ["--no-clicks", "--label", "click"], "--no-clicks reads no label, and --label or --shows names one"),
    ],
)
def test_a_file_that_cannot_be_predicted_is_refused_with_a_sentence(
    tmp_path: Path, text: str, words: list[str], reason: str
) -> None:
    done, asked = of_rows(written(tmp_path, "rows.csv", text), *words)

    assert (done.exit_code, done.stdout, asked) == (2, "", [])
    assert reason in done.stderr


def test_rows_come_from_standard_input_with_their_format() -> None:
    with saying(RowServer()) as address:
        done = call("-", "--address", address, "--format", "csv", given=ROWS)
        without = call("-", "--address", address, given=ROWS)

    assert (done.exit_code, done.stdout) == (0, "0.035\n0.5\n")
    assert "rows from standard input need --format csv, tsv or jsonl" in without.stderr


def test_options_of_rows_are_refused_for_a_model_of_lines() -> None:
    with saying(answering) as address:
        done = call("-", "--address", address, "--label", "click", given="1 0 5:0\n")

    assert (done.exit_code, done.stdout) == (2, "")
    assert "--label is for models of columns, and this one takes lines of feasigns" in done.stderr


def test_a_request_that_is_refused_as_a_whole_ends_the_command(tmp_path: Path) -> None:
    def refusing(method: str, path: str, body: Any) -> Said:
        return (400, {"error": "instances has 2 rows; 1 is the most"}) if body else RowServer()(method, path, body)

    with saying(refusing) as address:
        done = call(written(tmp_path, "rows.csv"), "--address", address, given="")

    assert (done.exit_code, done.stdout) == (2, "")
    assert "answers 400: instances has 2 rows" in done.stderr
