from typing import get_args

from elastic_ctr.config.model import NetworkName
from elastic_ctr.model.networks.catalog import NETWORKS


def test_the_settings_name_every_network_there_is() -> None:
    assert set(get_args(NetworkName)) == set(NETWORKS)
