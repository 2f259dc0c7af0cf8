"""Opens the table at an address."""

from elastic_ctr.config.addresses import DELTA
from elastic_ctr.config.data import DataSource
from elastic_ctr.sources.tables.table_log import TableLog, absent
from elastic_ctr.store.backends import open_source


def open_table(at: DataSource) -> TableLog:
    """Return the log of the table at `at.url`. Raises StoreError, TableRefused if what reads it is not installed."""
    if at.url.startswith(DELTA):
        from elastic_ctr.sources.tables.delta_log import DeltaLog

        return DeltaLog(at.url, open_source(at))
    try:
        from elastic_ctr.sources.tables.iceberg_log import IcebergLog
    except ModuleNotFoundError as missing:
        raise absent(at.url, missing.name) from missing
    return IcebergLog(at)
