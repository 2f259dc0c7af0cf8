"""elastic-ctr cube-agent"""

from pathlib import Path

from elastic_ctr.cli.entrypoint import (
    ConfigFile,
    advertised_host,
    exit_on_config_error,
    pod_name,
    settings_of,
    token_of,
)
from elastic_ctr.config.role_files import CubeAgentFile
from elastic_ctr.cube.agent.agent_api import run_cube_agent


def cube_agent(config: ConfigFile) -> None:
    """Fetch, verify and load what this pod's shard owes; report what its server answers."""
    settings = settings_of(CubeAgentFile, config, "cube-agent")
    own = settings.cube
    with exit_on_config_error():
        run_cube_agent(
            pod=pod_name("cube-s0-0"),
            address=f"{advertised_host(settings.host, settings.pod_domain)}:{own.port}",
            server_url=f"http://127.0.0.1:{own.admin_port}",
            transfer_url=f"http://{settings.transfer_address}",
            store_url=settings.store.url,
            store_user=settings.store.user,
            cache_dir=Path(own.cache_dir),
            host=settings.host,
            port=own.agent_port,
            token=token_of(settings.auth),
            bytes_per_second=own.fetch_bytes_per_second,
            drain_seconds=own.drain_seconds,
            report_seconds=own.report_seconds,
            drain_idle_seconds=own.drain_idle_seconds,
        )
