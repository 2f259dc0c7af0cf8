"""elastic-ctr cube-builder"""

from pathlib import Path

from elastic_ctr.cli.entrypoint import ConfigFile, exit_on_config_error, settings_of, token_of
from elastic_ctr.config.role_files import CubeBuilderFile
from elastic_ctr.cube.builder.build_server import run_cube_builder


def cube_builder(config: ConfigFile) -> None:
    """Build dictionary parts from SequenceFiles when cube-transfer asks for a version."""
    settings = settings_of(CubeBuilderFile, config, "cube-builder")
    own = settings.cube_transfer
    with exit_on_config_error():
        run_cube_builder(
            store_url=settings.store.url,
            store_user=settings.store.user,
            host=settings.host,
            port=own.builder_port,
            scratch_dir=Path(own.scratch_dir),
            jobs=own.builder_jobs,
            overlay_share=own.overlay_share,
            token=token_of(settings.auth),
        )
