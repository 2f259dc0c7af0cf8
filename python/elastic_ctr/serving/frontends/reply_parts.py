"""The parts of the replies to a batch of native requests, formatted in one call for all of them."""

from __future__ import annotations

import time

import numpy as np
import orjson
from numpy.typing import NDArray

from elastic_ctr.runtime.http_connection import date_line
from elastic_ctr.serving.batching.pooling import Floats
from elastic_ctr.serving.frontends import templates
from elastic_ctr.serving.frontends.http_batches import Replies
from elastic_ctr.training.model.probability import complement


def reply_parts(model_name: str, probabilities: Floats, kinds: NDArray[np.int64], version: int) -> Replies:
    """Return the parts that machine code joins into replies; `kinds` has the kind of each row's request."""
    output = {"name": "probability", "datatype": "FP32", "shape": []}
    tensors = {"model_name": model_name, "model_version": str(version), "outputs": [output]}
    in_pairs = probabilities[kinds == templates.SOURCE]
    pairs = np.empty((len(in_pairs), 2))
    pairs[:, 1] = in_pairs
    pairs[:, 0] = complement(pairs[:, 1])
    flat = np.ascontiguousarray(probabilities[kinds == templates.COLUMNS])
    return Replies(
        date=np.frombuffer(date_line(int(time.time())), np.uint8),
        # The numbers are formatted as by `elasticctr_json.inference_answer`.
        pairs=np.frombuffer(orjson.dumps(pairs, option=orjson.OPT_SERIALIZE_NUMPY), np.uint8),
        tensors=np.frombuffer(orjson.dumps(tensors).removesuffix(b"]}]}"), np.uint8),
        # The numbers are formatted as by `rows_json.rows_answer`.
        flat=np.frombuffer(orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY), np.uint8),
        version=np.frombuffer(b'],"model_version":"%d"}' % version, np.uint8),
    )
