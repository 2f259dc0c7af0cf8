"""elastic-ctr trainer"""

import threading
from contextlib import ExitStack
from pathlib import Path

from elastic_ctr.cli.entrypoint import ConfigFile, health_server, pod_name, run_until_signal, settings_of
from elastic_ctr.config.model import digest_of_model
from elastic_ctr.config.role_files import TrainerFile
from elastic_ctr.runtime.mlflow import TrackingServer
from elastic_ctr.trainer.host_metrics import HostMetrics
from elastic_ctr.trainer.supervisor import TrainerSupervisor


def trainer(config: ConfigFile) -> None:
    """Lease tasks from the master, convert and check them, train them against the parameter servers."""
    settings = settings_of(TrainerFile, config, "trainer")
    name = pod_name("trainer-0")
    spec = {
        "name": name,
        "master": settings.master_address,
        "tokenFile": settings.auth.token_file,
        "model": settings.model.model_dump(mode="json", by_alias=True),
        "modelDigest": digest_of_model(settings.model, settings.data.slots),
        "data": settings.data.model_dump(mode="json", by_alias=True),
        "trainer": settings.trainer.model_dump(mode="json", by_alias=True),
        "storeUrl": settings.store.url,
        "storeUser": settings.store.user,
        "scratch": settings.trainer.scratch_dir,
        "training": settings.training,
        "exitWhenDone": settings.exit_when_done,
    }

    def run(stop: threading.Event) -> int:
        supervisor = TrainerSupervisor(spec, Path(settings.trainer.scratch_dir))
        with ExitStack() as ends:
            if (tracked := settings.tracking) is not None:
                server = TrackingServer(tracked.url)
                ends.callback(HostMetrics(server, name, settings.training, tracked.experiment).start().stop)
            ends.enter_context(health_server("trainer", supervisor.status, settings.host, settings.trainer.admin_port))
            return supervisor.run(stop)

    run_until_signal(run)
