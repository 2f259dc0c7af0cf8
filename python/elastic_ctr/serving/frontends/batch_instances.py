"""The instances of all requests of a native batch, with their shared parts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elastic_ctr.features.transforms.transformer import Transformer
from elastic_ctr.formats.cells import SharedCells
from elastic_ctr.formats.json_scan import first_rows
from elastic_ctr.serving.batching.instances import Instances, SharedFeasigns
from elastic_ctr.serving.frontends.http_batches import (
    FEASIGNS,
    GROUP_FEASIGNS,
    GROUPS,
    REQUEST_GROUP,
    REQUEST_ROWS,
    REQUESTS,
    ROWS,
    Batch,
)
from elastic_ctr.serving.protocols.rows_json import instances_of_cells
from elastic_ctr.serving.request_error import RequestError


def _groups_of_rows(batch: Batch) -> NDArray[np.int64] | None:
    """Return the group of each row's shared part, or -1; None if no request has one."""
    if not batch.taken[GROUPS]:
        return None
    requests = batch.requests[: batch.taken[REQUESTS]]
    return np.repeat(requests[:, REQUEST_GROUP], requests[:, REQUEST_ROWS])


def instances_of_feasigns(batch: Batch, slots: int) -> Instances:
    """Return the instances of all requests, as views."""
    taken = batch.taken.tolist()
    rows, groups = taken[ROWS], taken[GROUPS]
    shared = None
    if (of_rows := _groups_of_rows(batch)) is not None:
        lengths = batch.group_lengths[: groups * slots].reshape(groups, slots)
        shared = SharedFeasigns(batch.group_feasigns[: taken[GROUP_FEASIGNS]], lengths, of_rows)
    feasigns = batch.feasigns[: taken[FEASIGNS]]
    return Instances(feasigns, batch.lengths[: rows * slots], rows, shared=shared)


def instances_of_rows(batch: Batch, transformer: Transformer) -> Instances | None:
    """Transform the rows of all requests in one call, because a call costs as much as several rows. Return None if one is refused."""
    rows, groups = int(batch.taken[ROWS]), int(batch.taken[GROUPS])
    shared = None
    if (of_rows := _groups_of_rows(batch)) is not None:
        room = batch.group_cells
        shared = SharedCells(first_rows(batch.bodies, room.cells, groups), room.given[:groups], of_rows)
    try:
        return instances_of_cells(first_rows(batch.bodies, batch.cells, rows), transformer, "instances", shared)
    except RequestError:
        return None
