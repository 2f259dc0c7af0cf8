from pathlib import Path

import pytest

from elastic_ctr.config.role_files import CubeAgentFile
from elastic_ctr.config.roles import CubePodConfig, StoreConfig
from elastic_ctr.cube.agent.agent_api import run_cube_agent


def test_a_pod_without_a_shard_in_its_name_does_not_start(tmp_path: Path) -> None:
    config = CubeAgentFile(
        store=StoreConfig(url=f"file://{tmp_path}"),
        cube=CubePodConfig(cache_dir=str(tmp_path)),
        transfer_address="127.0.0.1:1",
    )

    with pytest.raises(ValueError, match="does not end in -s<shard>-<replica>"):
        run_cube_agent(config, pod="cube-0", address="127.0.0.1:1")
