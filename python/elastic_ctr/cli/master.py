"""elastic-ctr master"""

import threading

from elastic_ctr.cli.entrypoint import ConfigFile, run_until_signal, settings_of, token_of
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.master.server import Master
from elastic_ctr.store import open_store
from elastic_ctr.store.source import open_source


def master(config: ConfigFile) -> None:
    """Find passes, lease tasks to trainers, keep the ledger, order checkpoints and recoveries."""
    settings = settings_of(MasterFile, config, "master")
    token = token_of(settings.auth)

    def run(stop: threading.Event) -> int:
        source = open_source(settings.data.source.url, settings.data.source.user)
        store = open_store(settings.store.url, user=settings.store.user, token=token)
        return Master(settings, source=source, store=store, token=token or "").run(stop)

    run_until_signal(run)
