"""Networks of the user's own as Paddle builds them: what is taken, and one sentence for each that is not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

DRIVER = Path(__file__).with_name("own_driver.py")
HEAD = """import paddle
from paddle import static
from elastic_ctr import network
def logit(inputs, settings):
"""
FC = "    return static.nn.fc(x, 1)"
ATTRIBUTE = "static.nn.fc(inputs.pooled, 1, weight_attr=paddle.ParamAttr"


def body(*lines: str) -> str:
    """The source of a network whose function has these lines; the first is line 5."""
    return HEAD + "".join(f"    {line}\n" for line in lines)


GOOD: dict[str, str] = {
    "layers without names": body("x = static.nn.fc(inputs.pooled, 3, activation='relu')", "return static.nn.fc(x, 1)"),
    "layers of paddle.nn": body("return paddle.nn.Linear(8, 1)(paddle.nn.LayerNorm(8)(inputs.pooled))"),
    "pieces": body(
        "fields = network.fields_of(inputs)",
        "deep = network.tower(network.flat(fields, inputs), inputs, [4], dropout=0.5, layer_norm=True)",
        "return network.first_order(fields, inputs) + network.pairs(fields, inputs) + deep + network.bias()",
    ),
    "dropout in training": body(
        "x = paddle.nn.functional.dropout(inputs.pooled, 0.5, training=inputs.training)", "return static.nn.fc(x, 1)"
    ),
    "settings": body("return static.nn.fc(inputs.pooled, settings['width'])[:, :1] * settings.get('scale', 2.5)"),
    "a mask": body(
        "lengths = paddle.cast(inputs.pooled[:, 0] > 0, 'int64') + 3",
        "mask = paddle.nn.functional.sequence_mask(lengths, maxlen=8, dtype='float32')",
        "return static.nn.fc(inputs.pooled * mask, 1)",
    ),
    "a constant": body("return static.nn.fc(inputs.pooled * paddle.to_tensor([2.0] * 8), 1)"),
    "a dataclass": "from __future__ import annotations\nfrom dataclasses import dataclass\n@dataclass\nclass A:\n    x: int = 1\n"
    + body("return static.nn.fc(inputs.pooled, A().x)"),
}  # fmt: skip
BAD: dict[str, tuple[str, str]] = {
    "a package that is absent": ("import torch_of_nowhere\n" + body("return 1"), "line 1 imports torch_of_nowhere, which is not installed here; docs/models.md"),
    "an error when it is run": ("x = 1 / 0\n" + body("return 1"), "line 1 raises ZeroDivisionError: division by zero"),
    "an exit when it is run": ("import sys\nsys.exit('no')\n" + body("return 1"), "line 2 raises SystemExit: no"),
    "an exit in the function": ("import sys\n" + body("sys.exit()"), "line 6 raises SystemExit; it would end the process, so raise an error instead"),
    "a name that is no function": ("logit = 5\n", "has no function logit; add `def logit(inputs, settings)`"),
    "one argument": ("def logit(inputs):\n    return 1\n", "logit of model.network.source takes (inputs); it is called with two arguments"),
    "an error in the function": (body("return settings['absent']"), "line 5 raises KeyError: 'absent'"),
    "an error of Paddle": (body("return paddle.concat([inputs.pooled, paddle.ones([2, 3, 4])], axis=1)"), "line 5 raises ValueError: The shape of input[0] and input[1] is expected to be equal."),
    "no variable": (body("return 0.5"), "returns float; return Paddle's variable"),
    "a row without a column": (body("return paddle.sum(inputs.pooled, axis=1)"), "the shape [batch]; return one logit a row, [batch, 1]; paddle.unsqueeze(…, 1) makes it that"),
    "two columns": (body("return static.nn.fc(inputs.pooled, 2)"), "the shape [batch, 2]; return one logit a row, [batch, 1]"),
    "one number for all rows": (body("return paddle.sum(inputs.pooled, keepdim=True)"), "the shape [1, 1]"),
    "another type": (body("return paddle.cast(static.nn.fc(inputs.pooled, 1), 'float64')"), "returns float64; return float32"),
    "batch normalisation": (body("return static.nn.fc(static.nn.batch_norm(inputs.pooled), 1)"), "line 5 uses batch_norm, whose statistics the parameter servers do not hold"),
    "dropout in predictions": (body("x = inputs.pooled", "x = paddle.nn.functional.dropout(x, 0.5)", "return static.nn.fc(x, 1)"), "line 6 drops values in predictions, too"),
    "Python in the program": (
        body("x = static.default_main_program().current_block().create_var(name='x', shape=[-1, 8], dtype='float32')", "static.py_func(lambda a: a, inputs.pooled, x)", "return static.nn.fc(x, 1)"),
        "line 6 uses py_func, which needs Python or a console where predictions are answered",
    ),
    "control flow": (body("x = static.nn.cond(paddle.mean(inputs.pooled) > 0, lambda: inputs.pooled, lambda: -inputs.pooled)", "return static.nn.fc(x, 1)"), "line 5 uses conditional_block, control flow"),
    "a table of its own": (body("x = paddle.nn.Embedding(9, 4)(paddle.cast(inputs.pooled[:, 0], 'int64'))", "return static.nn.fc(x, 1)"), "line 5 uses lookup_table_v2, a table of its own"),
    "a mean over the batch": (body("return static.nn.fc(inputs.pooled - paddle.mean(inputs.pooled, axis=0, keepdim=True), 1)"), "gives a row another logit in a batch than alone"),
    "the size of the batch": (body("return static.nn.fc(inputs.pooled, 1) * paddle.cast(paddle.shape(inputs.pooled)[0], 'float32')"), "gives a row another logit in a batch than alone"),
    "a batch of one size": (body("return static.nn.fc(paddle.reshape(inputs.pooled, [-1, 16])[:, :8], 1)"), "does not run with batches of 7 and of 1 row"),
    "random numbers": (body("return static.nn.fc(inputs.pooled + paddle.randn([1, 8]), 1)"), "gives other logits for the same rows"),
    "no number": (body("return static.nn.fc(paddle.log(inputs.pooled), 1)"), "gives nan for values drawn from a normal distribution"),
    "a name of the engine": (body(f"return {ATTRIBUTE}(name='embedding'))"), "line 5 makes the parameter embedding, a name that the engine uses itself"),
    "a histogram's name": (body(f"return {ATTRIBUTE}(name='auc.positives'))"), "line 5 makes the parameter auc.positives, a name that the engine uses itself"),
    "the input's name": (body(f"return {ATTRIBUTE}(name='pooled'))"), "pooled"),
    "another rate": (body(f"return {ATTRIBUTE}(name='a', learning_rate=0.1))"), "line 5 makes the parameter a with a learning rate or a regularizer of its own"),
    "a frozen parameter": (body(f"return {ATTRIBUTE}(name='a', trainable=False))"), "line 5 makes the parameter a, which is not trained; use a constant"),
    "a parameter of float64": (body("w = paddle.create_parameter([8, 1], 'float64', name='a')", "return paddle.cast(paddle.matmul(paddle.cast(inputs.pooled, 'float64'), w), 'float32')"), "makes the parameter a of float64; the parameter servers hold float32 alone"),
    "a parameter without values": (body("w = paddle.create_parameter([0, 1], 'float32', name='a')", "return static.nn.fc(inputs.pooled, 1) + paddle.sum(w)"), "a"),
    "a variable that is kept": (body("w = static.create_global_var([1], 0.5, 'float32', persistable=True, name='kept')", "return static.nn.fc(inputs.pooled, 1) + w"), "makes kept, a variable that is kept and is no parameter"),
    "a counter": (body("w = static.create_global_var([1], 0.0, 'float32', persistable=True, name='seen')", "paddle.assign(w + 1.0, output=w)", "return static.nn.fc(inputs.pooled, 1)"), "writes to seen, which would outlive the batch"),
    "a parameter of training alone": (body("x = static.nn.fc(inputs.pooled, 3) if inputs.training else inputs.pooled", "return static.nn.fc(x, 1)"), "in training and as"),
    "an unused parameter": (body("static.nn.fc(inputs.pooled, 3)", "return inputs.pooled[:, :1]"), "does not depend on the parameter own.own.fc_0.w_0; leave it out"),
    "no keys": (body("return static.nn.fc(paddle.zeros_like(inputs.pooled), 1)"), "inputs.pooled of model.network.source gets no gradient"),
    "keys that learn nothing": (body("return static.nn.fc(inputs.pooled.detach(), 1)"), "inputs.pooled of model.network.source gets no gradient"),
    "a parameter that learns nothing": (body("x = static.nn.fc(inputs.pooled, 3)", "return paddle.cast(x > 0, 'float32')[:, :1] + inputs.pooled[:, :1]"), "gets no gradient, so it would not learn"),
    "a layer that is made before the function": ("import paddle\npaddle.enable_static()\nfc = paddle.nn.Linear(8, 1)\ndef logit(inputs, settings):\n    return fc(inputs.pooled)\n", "makes the parameter own.own.linear_0.w_0 when it is imported; make layers and parameters inside logit"),
    "a name with a blank": (body(f"return {ATTRIBUTE}(name='a b'))"), "makes the parameter a b; a name has at most 200 letters"),
}  # fmt: skip
NUMBERS_UNUSED = body("return static.nn.fc(inputs.pooled, 1)")
NUMBERS_ALONE = body("return static.nn.fc(inputs.numbers, 1)")
SETTINGS = {"width": 3}


def case(source: str, numbers: tuple[str, ...] = ()) -> dict[str, Any]:
    model = {"network": {"source": source, "settings": SETTINGS}, "embeddingDim": 4}
    return {"model": model, "input": {"slots": ["a", "b"], "numbers": numbers}}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The answer to each case."""
    cases = {**GOOD, **{name: source for name, (source, _) in BAD.items()}}
    given = {name: case(source) for name, source in cases.items()}
    given["numbers that are not used"] = case(NUMBERS_UNUSED, ("n",))
    given["numbers alone"] = case(NUMBERS_ALONE, ("n",))
    file = tmp_path_factory.mktemp("own") / "cases.json"
    file.write_text(json.dumps([*given.values()]))
    done = subprocess.run(
        [sys.executable, str(DRIVER), str(file)], check=False, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(given, json.loads(done.stdout), strict=True))


@pytest.mark.parametrize("name", GOOD)
def test_a_network_that_can_be_trained_and_served_is_taken_with_its_parameters(said: dict[str, Any], name: str) -> None:
    assert isinstance(said[name], dict), said[name]


def test_parameters_without_names_are_numbered_from_0(said: dict[str, Any]) -> None:
    assert said["layers without names"] == {
        "own.own.fc_0.w_0": [8, 3], "own.own.fc_0.b_0": [3], "own.own.fc_1.w_0": [3, 1], "own.own.fc_1.b_0": [1],
    }  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_a_network_that_cannot_be_used_is_refused_by_a_sentence(said: dict[str, Any], name: str) -> None:
    assert isinstance(said[name], str), said[name]
    assert "model.network.source" in said[name]
    assert BAD[name][1] in said[name]
    assert "\n" not in said[name]
    assert len(said[name]) < 500


def test_numbers_that_the_network_does_not_use_are_refused(said: dict[str, Any]) -> None:
    assert "does not depend on inputs.numbers; use them" in said["numbers that are not used"]


def test_a_network_of_numbers_alone_is_refused(said: dict[str, Any]) -> None:
    assert "does not depend on inputs.pooled, so no key would learn" in said["numbers alone"]
