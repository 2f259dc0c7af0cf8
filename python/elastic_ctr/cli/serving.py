"""elastic-ctr serving"""

from elastic_ctr.cli.entrypoint import ConfigFile, pod_name, reason_of, refuse, settings_of, token_of
from elastic_ctr.config.role_files import ServingFile
from elastic_ctr.serving.app import run_serving
from elastic_ctr.store import StoreError, open_store


def serving(config: ConfigFile) -> None:
    """Answer predictions: one lookup, one dense network, one version."""
    settings = settings_of(ServingFile, config, "serving")
    token = token_of(settings.auth)
    try:
        store = open_store(settings.store.url, user=settings.store.user, token=token)
        run_serving(settings, store, pod_name("serving-0"), token)
    except (StoreError, OSError) as failed:
        refuse(reason_of(failed))
