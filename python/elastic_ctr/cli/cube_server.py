"""elastic-ctr cube-server"""

from elastic_ctr.cli.entrypoint import ConfigFile, exit_on_config_error, refuse, settings_of, token_of
from elastic_ctr.config.role_files import CubeServerFile
from elastic_ctr.cube.server.lookup_server import CubeServer
from elastic_ctr.runtime.process_pool import CannotWork


def cube_server(config: ConfigFile) -> None:
    """Answer lookups from the dictionary parts that the agent gives it."""
    settings = settings_of(CubeServerFile, config, "cube-server")
    try:
        with exit_on_config_error():
            server = CubeServer(settings.cube, settings.host, token_of(settings.auth))
        server.run()
    except CannotWork as failed:
        refuse(str(failed))
