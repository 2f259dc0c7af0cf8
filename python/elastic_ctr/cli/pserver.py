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
from elastic_ctr.store import StoreError, open_store


def pserver(config: ConfigFile) -> None:
    """Look after one of Paddle's parameter servers: start it, watch it, upload what it saves."""
    settings = settings_of(PserverFile, config, "pserver")
    index = ordinal_of(pod_name("pserver-0"))
    if index >= settings.pservers:
        refuse(f"pserver {index} is not one of {settings.pservers}; pserver.replicas and the pod's name must agree")
    try:
        store = open_store(settings.store.url, user=settings.store.user, token=token_of(settings.auth))
    except StoreError as wrong:
        refuse(str(wrong))

    def run(stop: threading.Event) -> int:
        supervisor = PserverSupervisor(
            index,
            settings,
            host=advertised_host(settings.host, settings.pod_domain),
            client=MasterClient(settings.master_address, token_of(settings.auth) or ""),
            store=store,
        )
        with health_server("pserver", supervisor.status, settings.host, settings.pserver.admin_port):
            return supervisor.run(stop)

    run_until_signal(run)
