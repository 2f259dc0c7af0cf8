"""The networks by the name that `model.network` gives them."""

from collections.abc import Callable
from typing import Any

from elastic_ctr.config.model import Model
from elastic_ctr.model.networks.deepfm import deepfm
from elastic_ctr.model.networks.fm import fm
from elastic_ctr.model.networks.inputs import Inputs
from elastic_ctr.model.networks.lr import lr
from elastic_ctr.model.networks.slot_dnn import slot_dnn
from elastic_ctr.model.networks.wide_deep import wide_deep

NETWORKS: dict[str, Callable[[Inputs, Model], Any]] = {
    "slot-dnn": slot_dnn,
    "deepfm": deepfm,
    "lr": lr,
    "fm": fm,
    "wide-deep": wide_deep,
}


def logit_of(model: Model, inputs: Inputs) -> Any:
    """The logit of each row, [batch, 1]. Built once for training and once for export, with the same names."""
    return NETWORKS[model.network](inputs, model)
