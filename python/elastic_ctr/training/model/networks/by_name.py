"""The networks by their names in `model.network`."""

from collections.abc import Callable
from typing import Any

from elastic_ctr.config.model import Model
from elastic_ctr.config.own_network import OwnNetwork
from elastic_ctr.training.model.networks.autoint import autoint
from elastic_ctr.training.model.networks.dcn import dcn
from elastic_ctr.training.model.networks.dcn_v2 import dcn_v2
from elastic_ctr.training.model.networks.deepfm import deepfm
from elastic_ctr.training.model.networks.final_mlp import final_mlp
from elastic_ctr.training.model.networks.fm import fm
from elastic_ctr.training.model.networks.lr import lr
from elastic_ctr.training.model.networks.own import own
from elastic_ctr.training.model.networks.parts import Inputs
from elastic_ctr.training.model.networks.slot_dnn import slot_dnn
from elastic_ctr.training.model.networks.wide_deep import wide_deep
from elastic_ctr.training.model.networks.xdeepfm import xdeepfm

# Each takes the settings class of the same name in elastic_ctr.config.networks; a test keeps the two lists equal.
NETWORKS: dict[str, Callable[[Inputs, Any], Any]] = {
    "deepfm": deepfm,
    "slot-dnn": slot_dnn,
    "lr": lr,
    "fm": fm,
    "wide-deep": wide_deep,
    "dcn": dcn,
    "dcn-v2": dcn_v2,
    "xdeepfm": xdeepfm,
    "autoint": autoint,
    "final-mlp": final_mlp,
}


def logit_of(model: Model, pooled: Any, numbers: Any, *, training: bool = False) -> Any:
    """Return the logit [batch, 1] from the pooled slots [batch, slots * dim] and the numbers [batch, n] or None.

    Training and export each build it once, with the same names. Raises NetworkRefused for a network of the user's own.
    """
    inputs = Inputs(
        pooled,
        numbers,
        slots=pooled.shape[1] // model.embedding_dim,
        width=0 if numbers is None else numbers.shape[1],
        dim=model.embedding_dim,
        classes=2 if model.output == "softmax" else 1,
        training=training,
    )
    if isinstance(model.network, OwnNetwork):
        return own(inputs, model.network)
    return NETWORKS[model.network.name](inputs, model.network)
