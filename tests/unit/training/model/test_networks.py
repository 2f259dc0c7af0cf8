from elastic_ctr.config import networks
from elastic_ctr.training.model.networks.by_name import NETWORKS


def test_the_settings_name_every_network_there_is() -> None:
    assert [*networks.NETWORKS] == [*NETWORKS]
