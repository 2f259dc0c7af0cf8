"""elastic-ctr trainer"""

import threading
from contextlib import ExitStack

from elastic_ctr.cli.entrypoint import ConfigFile, health_server, pod_name, run_until_signal, settings_of
from elastic_ctr.config.role_files import TrainerFile
from elastic_ctr.runtime.mlflow import TrackingServer
from elastic_ctr.trainer.host_metrics import HostMetrics
from elastic_ctr.trainer.supervisor import TrainerSupervisor


def trainer(config: ConfigFile) -> None:
    """Lease tasks from the master, convert and check them, train them against the parameter servers."""
    settings = settings_of(TrainerFile, config, "trainer")
    name = pod_name("trainer-0")

    def run(stop: threading.Event) -> int:
        supervisor = TrainerSupervisor(name, settings)
        with ExitStack() as ends:
            if (tracked := settings.tracking) is not None:
                server = TrackingServer(tracked.url)
                ends.callback(HostMetrics(server, name, settings.training, tracked.experiment).start().stop)
            ends.enter_context(health_server("trainer", supervisor.status, settings.host, settings.trainer.admin_port))
            return supervisor.run(stop)

    run_until_signal(run)
