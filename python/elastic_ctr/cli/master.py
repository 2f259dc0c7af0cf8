"""elastic-ctr master"""

import threading
from contextlib import ExitStack

from elastic_ctr.cli.roles import ConfigFile, refuse, run_until_signal, settings_of, token_of
from elastic_ctr.config.model import digest_of_model
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.master.role import Master
from elastic_ctr.master.tracking import Tracking
from elastic_ctr.runtime.tracking import TrackingServer
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
        role = Master(
            host=settings.host,
            data=settings.data,
            model=settings.model,
            config=settings.master,
            pservers=settings.pservers,
            epochs=settings.trainer.epochs,
            model_digest=digest_of_model(settings.model, settings.data.slots),
            source=source,
            store=store,
            token=token_of(settings.auth) or "",
            training=settings.training,
            handover_seconds=settings.handover_seconds,
        )
        with ExitStack() as ends:
            if (tracked := settings.tracking) is not None:
                told = settings.model_dump(mode="json", by_alias=True, include={"model", "trainer", "pservers"})
                tracking = Tracking(
                    TrackingServer(tracked.url),
                    settings.training,
                    tracked.experiment,
                    {**told, "path": settings.data.path, "start": settings.data.start},
                    role.passes,
                )
                ends.callback(tracking.start().stop)
            return role.run(stop)

    run_until_signal(run)
