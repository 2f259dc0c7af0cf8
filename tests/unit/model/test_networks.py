from typing import get_args

import numpy as np
import numpy.typing as npt
import pytest

from elastic_ctr.config.model import Model, NetworkName
from elastic_ctr.model.networks import NETWORKS, Inputs, logit_of


@pytest.mark.parametrize(("output", "outputs", "logit"), [("sigmoid", 1, [[1.0]]), ("softmax", 2, [[3.0]])])
def test_a_logit_is_of_the_network_that_the_model_names(
    monkeypatch: pytest.MonkeyPatch, output: str, outputs: int, logit: list[list[float]]
) -> None:
    given: list[object] = []

    def network(*told: object) -> npt.NDArray[np.float64]:
        given.extend(told)
        return np.array([[1.0, 4.0]])[:, :outputs]

    monkeypatch.setitem(NETWORKS, "deepfm", network)
    model = Model.model_validate({"network": "deepfm", "embeddingDim": 5, "layers": (8, 4), "output": output})

    inputs = Inputs("pooled", None, 3, 0)

    assert logit_of(model, inputs).tolist() == logit
    assert given == [inputs, 5, (8, 4), outputs]


def test_the_settings_name_every_network_there_is() -> None:
    assert set(get_args(NetworkName)) == set(NETWORKS)
