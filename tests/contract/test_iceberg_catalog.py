"""A table behind a real REST catalog: its commits, a catalog that is away or silent, and one that asks for a token."""

import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.utils.config import Config

from contract.iceberg_world import RestCatalogServer, WrittenByRest, rest_catalog
from elastic_ctr.config.data import DataSource
from elastic_ctr.sources.tables import iceberg_log
from elastic_ctr.sources.tables.table_address import open_table
from elastic_ctr.store.backends import NotInStore, StoreUnavailable
from needs import program
from ports import free_port
from written_tables import ids_in


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestCatalogServer]:
    with rest_catalog(tmp_path_factory.mktemp("iceberg-rest")) as made:
        yield made


@pytest.fixture(scope="module")
def table(catalog: RestCatalogServer) -> WrittenByRest:
    return WrittenByRest(catalog)


def test_the_rows_of_two_snapshots_are_those_that_were_appended(table: WrittenByRest) -> None:
    first, *others = table.append(1, 2), table.append(3), table.append(4, 5)
    table.compact()

    log = open_table(DataSource(url=table.url))
    *commits, compaction = log.since(first)

    assert [each.id for each in commits] == others
    assert [ids_in(table.url, each.files) for each in commits] == [Counter([3]), Counter([4, 5])]
    assert not compaction.files
    assert ids_in(table.url, log.whole(log.newest()).files) == Counter([1, 2, 3, 4, 5])
    with pytest.raises(NotInStore, match=r"has no table db\.other; is data\.source\.url right"):
        open_table(DataSource(url=table.url.replace("clicks", "other"))).newest()


def test_a_log_goes_on_once_its_catalog_is_back(catalog: RestCatalogServer, table: WrittenByRest) -> None:
    known, last = table.append(6), table.append(7)
    log, new = (open_table(DataSource(url=table.url)) for _ in range(2))
    assert log.newest() == last

    catalog.kill()
    for each in (log, new):
        with pytest.raises(StoreUnavailable, match=r"the catalog of iceberg.* does not give the table: .*refused"):
            each.newest()
    catalog.start()

    assert log.newest() == new.newest() == last
    assert [each.id for each in log.since(known, log.mark(known))] == [last]


def test_a_silent_catalog_is_given_up(
    catalog: RestCatalogServer, table: WrittenByRest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_log, "_TIMEOUT_SECONDS", 0.5)
    log, new = (open_table(DataSource(url=table.url)) for _ in range(2))
    last = log.newest()

    with catalog.silent():
        for each in (log, new):
            with pytest.raises(StoreUnavailable, match=r"does not give the table: .*timed out"):
                each.newest()

    monkeypatch.undo()
    assert log.newest() == new.newest() == last


@pytest.fixture
def guarded(catalog: RestCatalogServer, tmp_path: Path) -> Iterator[str]:
    """The address of nginx before the catalog, which passes on requests with the token `right` alone."""
    port = free_port()
    refusal = '{"error": {"message": "Not authorized", "type": "NotAuthorizedException", "code": 401}}'
    (tmp_path / "nginx.conf").write_text(f"""
        daemon off; pid {tmp_path}/pid; error_log stderr;
        events {{}}
        http {{
          access_log off; client_body_temp_path {tmp_path}/body; proxy_temp_path {tmp_path}/proxy;
          fastcgi_temp_path {tmp_path}/a; uwsgi_temp_path {tmp_path}/b; scgi_temp_path {tmp_path}/c;
          server {{
            listen 127.0.0.1:{port};
            default_type application/json;
            if ($http_authorization != "Bearer right") {{ return 401 '{refusal}'; }}
            location / {{ proxy_pass http://{catalog.address}; }}
          }}
        }}""")
    nginx = subprocess.Popen(
        [program("nginx"), "-e", "stderr", "-c", str(tmp_path / "nginx.conf")], start_new_session=True
    )
    try:
        while not (tmp_path / "pid").exists():
            time.sleep(0.01)
        yield f"127.0.0.1:{port}"
    finally:
        os.killpg(nginx.pid, signal.SIGKILL)
        nginx.wait()


@pytest.mark.parametrize("token", ["right", "wrong", None])
def test_a_token_is_that_of_pyicebergs_configuration(
    catalog: RestCatalogServer,
    table: WrittenByRest,
    guarded: str,
    monkeypatch: pytest.MonkeyPatch,
    token: str | None,
) -> None:
    last = table.append(8)
    if token is not None:
        monkeypatch.setenv("PYICEBERG_CATALOG__REST__TOKEN", token)
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    log = open_table(DataSource(url=table.url.replace(catalog.address, guarded)))

    if token == "right":
        assert log.newest() == last
        return
    with pytest.raises(StoreUnavailable, match=r"does not give the table: .*Not authorized") as refused:
        log.newest()
    assert "wrong" not in str(refused.value)
