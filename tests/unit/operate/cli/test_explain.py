import json
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from answering import Said, saying
from elastic_ctr.operate.cli.main import build
from operate.cli.fake_kubectl import FakeKubectl
from operate.cli.test_check_serving import metadata

FEATURES = [
    {"feature": "0", "contribution": 0.01, "without": 0.06, "against": "usual values", "keys": [{"key": str(key), "known": key > 13} for key in range(12, 18)]},
    {"feature": "7", "contribution": 0.0, "without": 0.07, "against": "missing", "keys": []},
    {"feature": "price", "contribution": -0.02, "without": 0.09, "against": "usual values", "number": 1.25, "missing": 0.5},
]  # fmt: skip


class Serving:
    def __init__(self, columns: dict[str, str] | None = None) -> None:
        self.columns = columns
        self.asked: list[Any] = []
        self.answer: Said = (
            200,
            {"explanations": [{"probability": 0.07, "features": FEATURES}], "model_version": "7"},
        )

    def __call__(self, _method: str, path: str, body: Any) -> Said:
        if not path.endswith(":explain"):
            found = metadata(7)
            if self.columns is not None:
                found["inputs"] = [{"name": name, "datatype": kind} for name, kind in self.columns.items()]
            return 200, found
        self.asked.append(body)
        return self.answer


def call(serving: Serving, *words: str, given: str | None = None) -> Result:
    with saying(serving) as address:
        return CliRunner().invoke(build("explain"), ["explain", *words, "--address", address], input=given)


@pytest.mark.parametrize("line", ["12:0 5:7", "1 0 12:0 5:7", "4 1 12:0 5:7\n"])
def test_a_line_is_explained_with_or_without_show_and_click(line: str) -> None:
    serving = Serving()

    done = call(serving, "-", given=line)

    assert done.exit_code == 0, done.output
    assert serving.asked == [{"instances": ["12:0 5:7"]}]


def test_a_line_without_features_is_explained() -> None:
    serving = Serving()

    done = call(serving, "-", given="\n")

    assert done.exit_code == 0, done.stderr
    assert serving.asked == [{"instances": [""]}]


def test_features_stand_in_the_order_of_their_contributions() -> None:
    done = call(Serving(), "12:0")

    assert done.exit_code == 0
    lines = [" ".join(line.split()) for line in done.stdout.splitlines()]
    assert lines[0] == "version 7: probability 0.07, logit -2.5867"
    assert lines[3:6] == [
        "price -0.020000 0.090000 usual values - 1.25 (missing: 0.5)",
        "0 +0.010000 0.060000 usual values 4/6 12 (unknown), 13 (unknown), 14, 15 … 2 more",
        "7 +0.000000 0.070000 missing - none",
    ]


def test_a_pipe_gets_a_feature_on_one_line_however_long_it_is() -> None:
    serving, name, against = Serving(), "n" * 150, "usual values of a column " * 5
    serving.answer[1]["explanations"][0]["features"] = [{**FEATURES[2], "feature": name, "against": against.strip()}]

    done = call(serving, "12:0")

    [line] = [each for each in done.stdout.splitlines() if name in each]
    assert against in line
    assert "1.25 (missing: 0.5)" in line


def test_top_says_how_many_are_left_out() -> None:
    done = call(Serving(), "12:0", "--top", "1")

    assert "price" in done.stdout
    assert "4/6" not in done.stdout
    assert "… and 2 more features with smaller contributions" in done.stdout


def test_json_has_every_key() -> None:
    done = call(Serving(), "12:0", "--json")

    found = json.loads(done.stdout)
    assert (found["version"], found["probability"]) == (7, 0.07)
    assert [each["feature"] for each in found["features"]] == ["price", "0", "7"]
    assert len(found["features"][1]["keys"]) == 6


def test_a_row_goes_as_it_is_and_a_column_that_no_feature_reads_is_refused_as_in_predictions() -> None:
    serving = Serving({"user": "BYTES", "price": "FP64"})
    serving.answer = (
        400,
        {"error": "instances[0] has the column 'usr', which no feature reads; they read user, price"},
    )

    done = call(serving, '{"usr": "u1", "price": 3}')

    assert serving.asked == [{"instances": [{"usr": "u1", "price": 3}]}]
    assert done.exit_code == 1
    assert "instances[0] has the column 'usr', which no feature reads" in done.stderr


@pytest.mark.parametrize(
    ("columns", "row", "reason"),
    [
        (None, '{"user": 1}', "the model takes lines of feasigns"),
        (None, "1 2 12:0", "the row is refused"),
        (None, "12:0\n13:0", "there are 2 lines; give one"),
        ({"user": "BYTES"}, "12:0", "the model takes rows of columns"),
        ({"user": "BYTES"}, '{"user": ', "it is not JSON"),
        ({"user": "BYTES"}, '{"user": "a", "user": "b"}', "'user' is there twice"),
        ({"user": "BYTES"}, '{"user": ' + "[" * 100_000, "its JSON is nested too deeply"),
    ],
)
def test_a_row_of_another_kind_is_refused(columns: dict[str, str] | None, row: str, reason: str) -> None:
    done = call(Serving(columns), "-", given=row)

    assert (done.exit_code, reason in done.stderr) == (1, True), done.stderr


def test_a_refusal_of_serving_is_printed_in_its_words() -> None:
    serving = Serving()
    serving.answer = (400, {"error": "instances[0] is refused, no_colon"})

    done = call(serving, "x:y:z")

    assert done.exit_code == 1
    assert "instances[0] is refused, no_colon" in done.stderr


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((200, {"explanations": []}), "does not answer as"),
        ((404, {"error": "'/v1/models/ctr:explain' is not a path of this server"}), "is not a path of this server"),
        ((503, {"error": "no version is live"}), "no version is live"),
    ],
)
def test_a_serving_that_cannot_explain_ends_with_2(answer: Said, reason: str) -> None:
    serving = Serving()
    serving.answer = answer

    done = call(serving, "12:0")

    assert (done.exit_code, reason in done.stderr) == (2, True), done.stderr


def test_it_comes_through_kubectl(kubectl: FakeKubectl) -> None:
    with saying(Serving()) as address:
        kubectl.say(forward={"ctr-serving-7c4d-x1:8400": int(address.partition(":")[2])})
        done = CliRunner().invoke(build("explain"), ["explain", "12:0", "--namespace", "ns"])

    assert done.exit_code == 0
    assert "version 7" in done.stdout
