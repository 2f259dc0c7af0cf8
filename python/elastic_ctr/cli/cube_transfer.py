"""elastic-ctr cube-transfer"""

from elastic_ctr.cli.entrypoint import ConfigFile, exit_on_config_error, settings_of, token_of
from elastic_ctr.config.role_files import CubeTransferFile
from elastic_ctr.cube.transfer.transfer_api import run_cube_transfer


def cube_transfer(config: ConfigFile) -> None:
    """Say which versions cube must hold and which one is live."""
    settings = settings_of(CubeTransferFile, config, "cube-transfer")
    with exit_on_config_error():
        run_cube_transfer(settings, token_of(settings.auth))
