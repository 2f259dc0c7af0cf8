"""The networks by the formulas of their papers, a row at a time in float64: what Paddle's results are compared with."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Weights = dict[str, Array]


class Row:
    """The values [slots, dim] and the numbers of a row, with the parameters and the settings of its network."""

    def __init__(self, values: Array, numbers: Array, weights: Weights, network: dict[str, Any]) -> None:
        self.values, self.numbers, self.w, self.network = values, numbers, weights, network
        scaled = [x * vector for x, vector in zip(numbers, weights.get("numbers.v", ()), strict=False)]
        self.vectors = [*values[:, 1:], *scaled]
        self.flat = np.array([*values[:, 1:].reshape(-1), *numbers])

    def first_order(self) -> float:
        weights = self.w["numbers.w"][:, 0] if len(self.numbers) else ()
        return float(sum(self.values[:, 0]) + sum(x * w for x, w in zip(self.numbers, weights, strict=True)))

    def pairs(self) -> float:
        """Each pair by itself."""
        return float(sum(one @ other for one, other in combinations(self.vectors, 2)))

    def layers(self, row: Array, count: int, prefix: str = "fc") -> Array:
        for number in range(count):
            row = row @ self.w[f"{prefix}{number}.w"] + self.w[f"{prefix}{number}.b"]
            if self.network.get("layerNorm"):
                row = (row - row.mean()) / np.sqrt(((row - row.mean()) ** 2).mean() + 1e-5)
                row = row * self.w[f"{prefix}{number}.norm.w"] + self.w[f"{prefix}{number}.norm.b"]
            row = np.maximum(row, 0)
        return row

    def deep(self) -> Array:
        return self.layers(self.flat, len(self.network["layers"]))

    def output(self, *parts: Array) -> float:
        return of_classes(np.concatenate(parts) @ self.w["out.w"] + self.w["out.b"])


def of_classes(classes: Array) -> float:
    return float(classes[1] - classes[0] if len(classes) == 2 else classes[0])


def slot_dnn(r: Row) -> float:
    return r.output(r.layers(np.array([*r.values.reshape(-1), *r.numbers]), len(r.network["layers"])))


def lr(r: Row) -> float:
    return r.first_order() + float(r.w["bias"][0])


def fm(r: Row) -> float:
    return r.first_order() + r.pairs() + float(r.w["bias"][0])


def wide_deep(r: Row) -> float:
    return r.first_order() + r.output(r.deep())


def deepfm(r: Row) -> float:
    return r.first_order() + r.pairs() + r.output(r.deep())


def dcn(r: Row) -> float:
    x = r.flat
    for number in range(r.network["crossLayers"]):
        x = r.flat * float(x @ r.w[f"cross{number}.w"][:, 0]) + r.w[f"cross{number}.b"] + x
    return r.first_order() + r.output(x, *([r.deep()] if r.network["layers"] else []))


def dcn_v2(r: Row) -> float:
    x = r.flat
    for number in range(r.network["crossLayers"]):
        name = f"cross{number}"
        full = r.w[f"{name}.u"] @ r.w[f"{name}.v"] if "rank" in r.network else r.w[f"{name}.w"]
        x = np.array([r.flat[i] * (sum(x * full[:, i]) + r.w[f"{name}.b"][i]) + x[i] for i in range(len(x))])
    if r.network.get("structure") == "stacked":
        return r.first_order() + r.output(r.layers(x, len(r.network["layers"])))
    return r.first_order() + r.output(x, *([r.deep()] if r.network["layers"] else []))


def xdeepfm(r: Row) -> float:
    maps, sums = r.vectors, []
    for number, width in enumerate(r.network["cinLayers"]):
        weights = r.w[f"cin{number}.w"].reshape(len(maps), len(r.vectors), width)
        new = []
        for h in range(width):
            found = np.zeros_like(r.vectors[0])
            for i, one in enumerate(maps):
                for j, other in enumerate(r.vectors):
                    found = found + weights[i, j, h] * one * other
            new.append(found)
        maps = new
        sums.append(np.array([each.sum() for each in maps]))
    return r.first_order() + r.output(*sums, *([r.deep()] if r.network["layers"] else []))


def autoint(r: Row) -> float:
    rows, heads, width = np.array(r.vectors), r.network["heads"], r.network["headDim"]
    for number in range(r.network["attentionLayers"]):
        w = {letter: r.w[f"attention{number}.{letter}"] for letter in "qkvr"}
        new = []
        for m in range(len(rows)):
            pieces = []
            for head in range(heads):
                of_head = slice(head * width, (head + 1) * width)
                likeness = [float((rows[m] @ w["q"][:, of_head]) @ (other @ w["k"][:, of_head])) for other in rows]
                shares = np.exp(np.array(likeness) - max(likeness))
                shares /= shares.sum()
                pieces.append(sum(share * (o @ w["v"][:, of_head]) for share, o in zip(shares, rows, strict=True)))
            new.append(np.maximum(np.concatenate(pieces) + rows[m] @ w["r"], 0))
        rows = np.array(new)
    return r.first_order() + r.output(rows.reshape(-1), *([r.deep()] if r.network["layers"] else []))


def final_mlp(r: Row) -> float:
    streams = []
    for name, key in (("first", "layers"), ("second", "secondLayers")):
        x = r.flat
        if r.network.get("gating"):
            hidden = r.layers(x, len(r.network["gateLayers"]), f"{name}.gate")
            gate = 1 / (1 + np.exp(-(hidden @ r.w[f"{name}.gate.out.w"] + r.w[f"{name}.gate.out.b"])))
            x = x * 2 * gate
        streams.append(r.layers(x, len(r.network[key]), f"{name}.fc"))
    one, other = streams
    classes = one @ r.w["out.w"] + r.w["out.b"] + other @ r.w["out.second.w"]
    heads = r.network["heads"]
    a, b = len(one) // heads, len(other) // heads
    for c in range(len(classes)):
        for h in range(heads):
            full = r.w["bilinear.w"][h].reshape(a, len(classes), b)[:, c]
            classes[c] += one[h * a : (h + 1) * a] @ full @ other[h * b : (h + 1) * b]
    return r.first_order() + of_classes(classes)


FORMULAS: dict[str, Callable[[Row], float]] = {
    "slot-dnn": slot_dnn,
    "lr": lr,
    "fm": fm,
    "wide-deep": wide_deep,
    "deepfm": deepfm,
    "dcn": dcn,
    "dcn-v2": dcn_v2,
    "xdeepfm": xdeepfm,
    "autoint": autoint,
    "final-mlp": final_mlp,
}
