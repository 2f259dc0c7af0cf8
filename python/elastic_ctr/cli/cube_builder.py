"""elastic-ctr cube-builder"""

from elastic_ctr.cli.entrypoint import ConfigFile, exit_on_config_error, settings_of, token_of
from elastic_ctr.config.role_files import CubeBuilderFile
from elastic_ctr.cube.builder.build_server import run_cube_builder


def cube_builder(config: ConfigFile) -> None:
    """Build dictionary parts from SequenceFiles when cube-transfer asks for a version."""
    settings = settings_of(CubeBuilderFile, config, "cube-builder")
    with exit_on_config_error():
        run_cube_builder(settings, token_of(settings.auth))
