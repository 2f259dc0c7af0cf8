"""elastic-ctr pserver"""

import threading

from elastic_ctr.cli.entrypoint import (
    ConfigFile,
    advertised_host,
    health_server,
    ordinal_of,
    pod_name,
    refuse,
    run_until_signal,
    settings_of,
    token_of,
)
from elastic_ctr.config.role_files import PserverFile
from elastic_ctr.control.channel import MasterClient
from elastic_ctr.pserver.supervisor import PserverSupervisor
from elastic_ctr.store import open_store


def pserver(config: ConfigFile) -> None:
    """Run one of Paddle's parameter servers: start it, watch it, upload its saves."""
    settings = settings_of(PserverFile, config, "pserver")
    index = ordinal_of(pod_name("pserver-0"))
    if index >= settings.pservers:
        refuse(f"pserver {index} is not one of {settings.pservers}; pserver.replicas and the pod's name must agree")
    token = token_of(settings.auth)

    def run(stop: threading.Event) -> int:
        supervisor = PserverSupervisor(
            index,
            settings,
            host=advertised_host(settings.host, settings.pod_domain),
            client=MasterClient(settings.master_address, token or ""),
            store=open_store(settings.store.url, user=settings.store.user, token=token),
        )
        with health_server("pserver", supervisor.status, settings.host, settings.pserver.admin_port):
            return supervisor.run(stop)

    run_until_signal(run)
