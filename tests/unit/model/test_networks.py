from typing import get_args

import pytest

from elastic_ctr.config.model import NetworkName
from elastic_ctr.model.networks import NETWORKS, Head


def test_a_network_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(ValueError, match=r"model\.network 'wide' is not one of deepfm, slot-dnn"):
        Head("wide", 2, 9, (4,))


@pytest.mark.parametrize("network", sorted(NETWORKS))
def test_each_network_of_the_list_makes_a_head(network: str) -> None:
    assert Head(network, 2, 9, (4,)).output == "sigmoid"


def test_the_settings_name_every_network_there_is() -> None:
    assert set(get_args(NetworkName)) == set(NETWORKS)
