from pathlib import Path

import pytest

from elastic_ctr.cube.agent.agent_api import run_cube_agent


def test_a_pod_without_a_shard_in_its_name_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not end in -s<shard>-<replica>"):
        run_cube_agent(
            pod="cube-0", address="127.0.0.1:1", server_url="http://127.0.0.1:1", transfer_url="http://127.0.0.1:1",
            store_url=f"file://{tmp_path}", cache_dir=tmp_path,
        )  # fmt: skip
