"""`POST /ElasticCTRPredictionService/inference`: the JSON of ElasticCTR's own prediction service (source 000).

    {"instances": [{"slots": [{"slot_name": "0", "feasigns": [17241709254077376921]}, …]}, …]}
    {"predictions": [{"prob0": 0.9, "prob1": 0.1}, …], "err_code": 0}

`prob1` is the probability of a click. Unlike the source: slots may come in any order, be absent, or stand twice (their
feasigns add up), instances may differ in their slots, and a feasign may be a number or decimal text. The proto's field
is int64, so a negative feasign is the same 64 bits as a u64. A refusal has err_code -1, err_msg, and a 4xx status.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import orjson

from elastic_ctr.features.slots import SlotList
from elastic_ctr.serving.batching.instances import Instances, feasign_array
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.protocols.json_fields import enough_instances, fields, items, json_object, text
from elastic_ctr.serving.request_error import BadRequest, RequestError, short_repr


def parse_inference(body: bytes, slots: SlotList, max_instances: int) -> Instances:
    """Raises RequestError for whatever is not the request above."""
    instances = items(fields(json_object(body), "", ("instances",))["instances"], "instances")
    enough_instances(len(instances), max_instances, "instances")
    feasigns: list[Any] = []
    lengths: list[int] = []
    for number, instance in enumerate(instances):
        by_slot: list[list[Any]] = [[]] * len(slots)
        for index, _, values in _slots_of(instance, number, slots):
            by_slot[index] = by_slot[index] + values if by_slot[index] else values
        for values in by_slot:
            lengths.append(len(values))
            feasigns += values
    where = partial(_place_of, instances, slots)
    return Instances(feasign_array(feasigns, where), np.array(lengths, np.int64), len(instances))


def inference_answer(probabilities: Floats) -> bytes:
    return orjson.dumps(
        {"predictions": [{"prob0": 1.0 - p, "prob1": p} for p in probabilities.tolist()], "err_code": 0}
    )


def inference_refusal(refusal: RequestError) -> bytes:
    return orjson.dumps({"predictions": [], "err_code": -1, "err_msg": refusal.sentence, "error": refusal.sentence})


def _slots_of(instance: Any, number: int, slots: SlotList) -> Iterator[tuple[int, int, list[Any]]]:
    """Index, place in the instance and feasigns of each slot of an instance, in the request's order."""
    where = f"instances[{number}]"
    given = items(fields(instance, where, ("slots",))["slots"], f"{where}.slots")
    for place, slot in enumerate(given):
        # The text of a place is made only when it is needed: here a request with 100,000 instances spends its time.
        if type(slot) is dict and len(slot) == 2:
            name, values = slot.get("slot_name"), slot.get("feasigns")
            if type(name) is str and type(values) is list and name in slots:
                yield slots.index(name), place, values
                continue
        here = f"{where}.slots[{place}]"
        checked = fields(slot, here, ("slot_name",), ("feasigns",))
        name = text(checked["slot_name"], f"{here}.slot_name")
        if name not in slots:
            raise BadRequest(f"{here}.slot_name {short_repr(name)} is not a slot of the model; it has {named(slots)}")
        yield slots.index(name), place, items(checked.get("feasigns", []), f"{here}.feasigns")


def _place_of(instances: list[Any], slots: SlotList, index: int) -> str:
    """The name in the request of a feasign, by its place among all of them."""
    for number, instance in enumerate(instances):
        by_slot: list[list[str]] = [[] for _ in slots]
        for slot, place, values in _slots_of(instance, number, slots):
            by_slot[slot] += [f"instances[{number}].slots[{place}].feasigns[{each}]" for each in range(len(values))]
        names = list(chain.from_iterable(by_slot))
        if index < len(names):
            return names[index]
        index -= len(names)
    raise IndexError(index)


def named(slots: SlotList) -> str:
    """The slot names for a sentence, at most ten."""
    names = list(slots)
    return ", ".join(names[:10]) + (f" … ({len(names)} in all)" if len(names) > 10 else "")
