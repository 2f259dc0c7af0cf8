"""Takes over another network's parameters of the same names, for the slots and numbers that both networks have.

Many parameters have an axis along the inputs: a number of indices for each slot and for each number. Building the network again with
one more slot, and with one more number, reveals these axes. Values move with their slot or number; those of new inputs begin at 0, so
that the network at first answers like the other one if these inputs are absent.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Values = Mapping[str, Array]
Shapes = Mapping[str, Sequence[int]]

# Prefix of parameters of pairs of a map and a field, whose axis is not along the inputs.
_OF_PAIRS = "cin"
# A parameter is dropped only if that halves the distance; a smaller gain may be chance, as behind parameters that begin anew.
_CLEARLY = 0.5


@dataclass(frozen=True)
class Names:
    """The inputs of a network in order."""

    slots: tuple[str, ...]
    numbers: tuple[str, ...]


@dataclass(frozen=True)
class Axis:
    """The indices of an axis: `slot` for each slot, then `number` for each number, then `rest` that are not along the inputs."""

    slot: int
    number: int
    rest: int

    @classmethod
    def of(cls, size: int, one_slot_more: int, one_number_more: int, names: Names) -> "Axis":
        slot, number = one_slot_more - size, one_number_more - size
        return cls(slot, number, size - slot * len(names.slots) - number * len(names.numbers))

    def size(self, names: Names) -> int:
        return self.slot * len(names.slots) + self.number * len(names.numbers) + self.rest

    def moved(self, before: Names, now: Names) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the indices of common inputs in the other network, and their indices in this one."""
        pairs: list[tuple[int, int]] = []
        base_before = base_now = 0
        for width, old, new in ((self.slot, before.slots, now.slots), (self.number, before.numbers, now.numbers)):
            for name in new:
                if name in old:
                    from_, to = base_before + width * old.index(name), base_now + width * new.index(name)
                    pairs += [(from_ + place, to + place) for place in range(width)]
            base_before += width * len(old)
            base_now += width * len(new)
        pairs += [(base_before + place, base_now + place) for place in range(self.rest)]
        found = np.array(pairs, np.int64).reshape(-1, 2)
        return found[:, 0], found[:, 1]


def axes_of(
    shape: Sequence[int], one_slot_more: Sequence[int], one_number_more: Sequence[int], names: Names
) -> list[Axis]:
    return [Axis.of(*sizes, names) for sizes in zip(shape, one_slot_more, one_number_more, strict=True)]


def taken_over(old: Array, first: Array, axes: Sequence[Axis], before: Names, now: Names) -> Array | None:
    """Return the values of `old` at their new indices. Other values are those of `first` if it has one dimension, else 0.

    Return None if the shape of the old parameter does not match its inputs.
    """
    if any(axis.rest < 0 for axis in axes) or tuple(axis.size(before) for axis in axes) != old.shape:
        return None
    # Parameters of one dimension are biases and the weights of layer norms, which do not begin at 0.
    values: Array = first.copy() if first.ndim == 1 else np.zeros_like(first)
    places = [axis.moved(before, now) for axis in axes]
    values[np.ix_(*[to for _, to in places])] = old[np.ix_(*[from_ for from_, _ in places])]
    return values


@dataclass(frozen=True)
class TakenOver:
    """The first values of all parameters, and a sentence about what was taken over."""

    values: dict[str, Array]
    sentence: str


def take_over(
    old: Values,
    first: Values,
    probes: tuple[Shapes, Shapes],
    before: Names,
    now: Names,
    distance: Callable[[Values], float],
) -> TakenOver:
    """Return first values with the parameters of `old` that fit, unless the logits are nearer to the other network's without them.

    Args:
        old: values of the other network.
        first: values that this network would begin with.
        probes: shapes of this network's parameters with one more slot, and with one more number.
        before: inputs of the other network.
        now: inputs of this one.
        distance: mean absolute difference of the two networks' logits when this one has these values.
    """
    values = {name: np.array(each, np.float32) for name, each in first.items()}
    kept = []
    for name, each in first.items():
        shapes = [probe.get(name, ()) for probe in probes]
        if name not in old or name.startswith(_OF_PAIRS) or any(len(shape) != each.ndim for shape in shapes):
            continue
        found = taken_over(old[name], each, axes_of(each.shape, shapes[0], shapes[1], now), before, now)
        if found is not None:
            values[name] = found
            kept.append(name)
    if not kept:
        return TakenOver(dict(first), "nothing, for no parameter has the name and shape of one of its own")
    near, far = distance(values), distance(first)
    # A network of the user's own may lay out its inputs in another way than slot by slot; then moving values is wrong.
    moved = [name for name in kept if any(tuple(probe[name]) != first[name].shape for probe in probes)]
    for name in moved if before != now else []:
        without = {**values, name: np.array(first[name], np.float32)}
        nearer = distance(without)
        if nearer < near * _CLEARLY:
            values, near = without, nearer
            kept.remove(name)
    if not kept:
        return TakenOver(dict(first), "nothing, for its logits are nearer without each of its parameters")
    # Not `near >= far`, which is false for NaN.
    if not near < far:
        return TakenOver(
            dict(first),
            f"nothing: with its parameters the logits would be {near:.3g} from its own, with first values they are {far:.3g}",
        )
    fresh = sorted(set(first) - set(kept))
    begins_anew = f"; {', '.join(fresh)} begin anew" if fresh else ""
    return TakenOver(
        values,
        f"{len(kept)} of {len(first)} parameters, without their optimizer's state{begins_anew}; its logits differ by "
        f"{near:.3g} on average where the slots and numbers of only one of the two are absent, with first values by {far:.3g}",
    )


def random_rows(before: Names, now: Names, dim: int, rows: int = 256) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return the same random rows for both networks, (pooled [rows, slots * dim], numbers [rows, n]); inputs of only one are 0."""
    rng = np.random.default_rng(0)
    slots = {name: rng.normal(0, 0.1, (rows, dim)) for name in before.slots if name in now.slots}
    numbers = {name: rng.normal(0, 1, (rows, 1)) for name in before.numbers if name in now.numbers}

    def of(names: Names) -> tuple[Any, Any]:
        pooled = [slots.get(name, np.zeros((rows, dim))) for name in names.slots]
        others = [numbers.get(name, np.zeros((rows, 1))) for name in names.numbers]
        beside = np.concatenate(others, axis=1) if others else np.zeros((rows, 0))
        return np.concatenate(pooled, axis=1).astype(np.float32), beside.astype(np.float32)

    return of(before), of(now)
