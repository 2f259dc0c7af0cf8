"""elastic-ctr cube-transfer"""

from pathlib import Path

from elastic_ctr.cli.entrypoint import ConfigFile, exit_on_config_error, settings_of, token_of
from elastic_ctr.config.role_files import CubeTransferFile
from elastic_ctr.cube.transfer.transfer_api import run_cube_transfer


def cube_transfer(config: ConfigFile) -> None:
    """Say which versions cube must hold and which one is live."""
    settings = settings_of(CubeTransferFile, config, "cube-transfer")
    own = settings.cube_transfer
    with exit_on_config_error():
        run_cube_transfer(
            store_url=settings.store.url,
            store_user=settings.store.user,
            state_dir=Path(own.state_dir),
            host=settings.host,
            port=own.port,
            builder_url=f"http://127.0.0.1:{own.builder_port}",
            shards=settings.shards,
            replicas=settings.replicas_per_shard,
            min_ready_replicas=own.min_ready_replicas,
            validation_timeout_seconds=own.validation_timeout_seconds,
            keep_versions=own.keep_versions,
            cube_domain=settings.cube_domain,
            token=token_of(settings.auth),
            poll_seconds=own.poll_seconds,
            report_timeout_seconds=own.report_timeout_seconds,
            state_recovery_seconds=own.state_recovery_seconds,
        )
