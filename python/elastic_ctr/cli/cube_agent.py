"""elastic-ctr cube-agent"""

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
    address = f"{advertised_host(settings.host, settings.pod_domain)}:{settings.cube.port}"
    with exit_on_config_error():
        run_cube_agent(settings, pod=pod_name("cube-s0-0"), address=address, token=token_of(settings.auth))
