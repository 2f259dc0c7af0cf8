"""elastic-ctr master"""

import threading

from elastic_ctr.cli.entrypoint import ConfigFile, refuse, run_until_signal, settings_of, token_of
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.master.server import Master
from elastic_ctr.store import StoreError, open_store
from elastic_ctr.store.source import open_source


def master(config: ConfigFile) -> None:
    """Find hours, lease tasks to trainers, keep the ledger, decide when to save and where to go back to."""
    settings = settings_of(MasterFile, config, "master")
    try:
        source = open_source(settings.data.source.url, settings.data.source.user)
        store = open_store(settings.store.url, user=settings.store.user, token=token_of(settings.auth))
    except StoreError as wrong:
        refuse(str(wrong))

    def run(stop: threading.Event) -> int:
        return Master(settings, source=source, store=store, token=token_of(settings.auth) or "").run(stop)

    run_until_signal(run)
