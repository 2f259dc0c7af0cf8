"""The parts of the replies to a batch of native requests, formatted in one call for all of them."""

from __future__ import annotations

import time

import numpy as np
import orjson
from numpy.typing import NDArray

from elastic_ctr.runtime.http_connection import date_line
from elastic_ctr.serving.batching.instances import Floats, best_places
from elastic_ctr.serving.frontends import templates
from elastic_ctr.serving.frontends.http_batches import REQUEST_KIND, REQUEST_ROWS, REQUEST_TOP
from elastic_ctr.serving.frontends.native_replies import Replies
from elastic_ctr.training.model.probability import complement

_NO_PLACES = np.empty(0, np.int64)


def reply_parts(
    model_name: str, requests: NDArray[np.int64], probabilities: Floats, version: int
) -> tuple[Replies, Floats]:
    """Return the parts that machine code joins into replies to `requests`, i64 [requests, REQUEST_WIDTH], and the rows that they have.

    A request with REQUEST_TOP has its best rows, all others have all of theirs.
    """
    rows, tops, places = requests[:, REQUEST_ROWS], requests[:, REQUEST_TOP], _NO_PLACES
    if tops.any():
        begins = np.cumsum(rows) - rows
        of_requests = zip(begins.tolist(), rows.tolist(), tops.tolist(), strict=True)
        places = np.concatenate(
            [
                best_places(probabilities[at : at + count], top) if top else np.arange(count)
                for at, count, top in of_requests
            ]
        )
        rows = np.where(tops > 0, tops, rows)
        probabilities = probabilities[places + np.repeat(begins, rows)]
    kinds = np.repeat(requests[:, REQUEST_KIND], rows)
    output = {"name": "probability", "datatype": "FP32", "shape": []}
    tensors = {"model_name": model_name, "model_version": str(version), "outputs": [output]}
    in_pairs = probabilities[kinds == templates.SOURCE]
    pairs = np.empty((len(in_pairs), 2))
    pairs[:, 1] = in_pairs
    pairs[:, 0] = complement(pairs[:, 1])
    flat = np.ascontiguousarray(probabilities[kinds == templates.COLUMNS])
    parts = Replies(
        date=np.frombuffer(date_line(int(time.time())), np.uint8),
        # The numbers are formatted as by `elasticctr_json.inference_answer`.
        pairs=np.frombuffer(orjson.dumps(pairs, option=orjson.OPT_SERIALIZE_NUMPY), np.uint8),
        tensors=np.frombuffer(orjson.dumps(tensors).removesuffix(b"]}]}"), np.uint8),
        # The numbers are formatted as by `rows_json.rows_answer`.
        flat=np.frombuffer(orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY), np.uint8),
        version=np.frombuffer(b'],"model_version":"%d"}' % version, np.uint8),
        places=places,
    )
    return parts, probabilities
