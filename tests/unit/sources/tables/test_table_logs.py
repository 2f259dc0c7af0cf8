"""The commits of real tables, written by their own libraries."""

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from elastic_ctr.config.data import DataSource
from elastic_ctr.sources.tables.table_address import open_table
from elastic_ctr.sources.tables.table_log import CommitsGone, TableCommit, TableLog, TableRefused
from elastic_ctr.store.backends import NotInStore
from written_tables import KINDS, WrittenDelta, WrittenIceberg, WrittenTable, ids_in, rows


@pytest.fixture(params=KINDS)
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrittenTable:
    return KINDS[request.param](tmp_path, monkeypatch)


@pytest.fixture
def delta(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrittenDelta:
    return WrittenDelta(tmp_path, monkeypatch)


def log_of(table: WrittenTable) -> TableLog:
    return open_table(DataSource(url=table.url))


def ids_of(table: WrittenTable, *commits: TableCommit) -> Counter[int]:
    return ids_in(table.url, [path for commit in commits for path in commit.files])


def test_the_rows_of_a_commit_are_those_that_it_appended(table: WrittenTable) -> None:
    first, *others = table.append(1, 2), table.append(3), table.append(4, 5)

    commits = list(log_of(table).since(first))

    assert [each.id for each in commits] == others
    assert [ids_of(table, each) for each in commits] == [Counter([3]), Counter([4, 5])]
    assert not any(each.removes or each.refused for each in commits)
    assert list(log_of(table).since(others[-1])) == []


def test_a_compaction_has_no_rows(table: WrittenTable) -> None:
    table.append(1)
    last = table.append(2)
    table.compact()

    [commit] = log_of(table).since(last)

    assert (dict(commit.files), commit.removes, commit.refused) == ({}, False, "")


def test_a_version_as_a_whole_has_the_rows_that_the_table_had_then(table: WrittenTable) -> None:
    table.append(1, 2)
    then = table.append(3)
    table.compact()
    table.append(4)

    log = log_of(table)

    assert ids_of(table, log.whole(then)) == Counter([1, 2, 3])
    assert ids_of(table, log.whole(log.newest())) == Counter([1, 2, 3, 4])


def test_a_deletion_of_whole_files_removes_and_adds_none(table: WrittenTable) -> None:
    last = table.append(1, 2)
    table.delete("id < 3")

    [commit] = log_of(table).since(last)

    assert commit.removes
    assert not commit.files


def test_a_deletion_of_some_rows_of_a_file_removes_and_adds_the_others_again(table: WrittenTable) -> None:
    last = table.append(1, 2, 3)
    table.delete("id = 2")

    [commit] = log_of(table).since(last)

    assert commit.removes
    assert ids_of(table, commit) == Counter([1, 3])


def test_commits_that_expired_before_a_pass_had_them_are_named_with_the_way_out(table: WrittenTable) -> None:
    known = table.append(1)
    table.append(2)
    last = table.append(3)
    mark = log_of(table).mark(known)
    table.expire()

    with pytest.raises(
        CommitsGone, match=rf'of {table.url.replace("+", ".")} between {known}, .* set data.start to "\d+"'
    ) as gone:
        list(log_of(table).since(known, mark))

    start = str(gone.value).split('"')[1]
    assert log_of(table).may_follow(start, known)
    assert [each.id for each in log_of(table).since(start)] in ([], [last])


def test_nothing_is_gone_if_all_expired_commits_were_known(table: WrittenTable) -> None:
    table.append(1)
    known = table.append(2)
    mark = log_of(table).mark(known)
    last = table.append(3)
    table.expire()

    assert [each.id for each in log_of(table).since(known, mark)] == [last]
    assert ids_of(table, log_of(table).whole(last)) == Counter([1, 2, 3])


def test_another_table_at_the_same_address_is_refused(table: WrittenTable) -> None:
    known = table.append(1)
    mark = log_of(table).mark(known)
    table.remake()

    with pytest.raises(TableRefused, match=r"was made anew since passes had it up to .*: begin another model"):
        list(log_of(table).since(known, mark))


def test_an_address_without_a_table_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    iceberg = WrittenIceberg(tmp_path, monkeypatch)

    with pytest.raises(NotInStore, match="has no _delta_log with commits, so it is no Delta table"):
        open_table(DataSource(url=f"delta+file://{tmp_path}")).newest()
    with pytest.raises(NotInStore, match=r"has no table db\.other; is data\.source\.url right"):
        open_table(DataSource(url=iceberg.url.replace("clicks", "other"))).newest()


def test_an_iceberg_table_without_a_snapshot_has_its_first_rows_behind_the_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = WrittenIceberg(tmp_path, monkeypatch)
    log = log_of(table)
    assert log.newest() == ""
    table.append(1)

    assert ids_of(table, *log.since("", log.mark(""))) == Counter([1])


def test_rows_that_files_of_deletes_take_away_are_a_deletion_and_refuse_the_table_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = WrittenIceberg(tmp_path, monkeypatch)
    last = table.append(1, 2)
    deleted = table.delete_by_position()
    table.append(3)

    log = log_of(table)
    commit, after = log.since(last)

    assert (commit.removes, dict(commit.files)) == (True, {})
    assert ids_of(table, after) == Counter([3])
    assert log.whole(last).refused == ""
    assert log.whole(deleted).refused == "1 files of deletes take rows out of its data files"


def test_a_table_of_a_rest_catalog_is_found_by_its_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = WrittenIceberg(tmp_path, monkeypatch)
    last = table.append(1, 2)
    metadata = json.loads(Path(table.table.metadata_location.removeprefix("file://")).read_text())
    answers = {
        "/v1/config": {"defaults": {}, "overrides": {}},
        "/v1/namespaces/db/tables/clicks": {"metadata": metadata, "metadata-location": "x", "config": {}},
    }

    class Catalog(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answers[self.path.partition("?")[0]]).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Catalog) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        log = open_table(DataSource(url=f"iceberg+rest://127.0.0.1:{server.server_port}/{table.name}"))

        assert log.newest() == last
        assert ids_in(log.url, log.whole(last).files) == Counter([1, 2])
        server.shutdown()


def test_a_rolled_back_snapshot_is_no_longer_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = WrittenIceberg(tmp_path, monkeypatch)
    first, known = table.append(1), table.append(2)
    table.table.manage_snapshots().rollback_to_snapshot(int(first)).commit()

    with pytest.raises(CommitsGone, match="they expired, or the table was rolled back"):
        list(log_of(table).since(known))


def test_partitions_of_delta_are_read_from_their_folders(tmp_path: Path, delta: WrittenDelta) -> None:
    folder = tmp_path / "parted"
    write_deltalake(folder, rows([1, 2]), partition_by=["tag"])

    whole = open_table(DataSource(url=f"delta+file://{folder}")).whole("0")

    assert sorted(path.partition("/")[0] for path in whole.files) == ["tag=t1", "tag=t2"]
    assert ids_in(f"delta+file://{folder}", whole.files) == Counter([1, 2])
    assert not whole.refused


def forge(table: WrittenDelta, action: str, **given: object) -> None:
    """Change the first action of a kind in the table's last commit."""
    commit = max((table.folder / "_delta_log").glob("*.json"))
    lines = [json.loads(line) for line in commit.read_text().splitlines()]
    changed = next((line[action] for line in lines if action in line), None)
    if changed is None:
        changed = {}
        lines.append({action: changed})
    changed.update(given)
    commit.write_text("\n".join(map(json.dumps, lines)))


@pytest.mark.parametrize(
    ("action", "given", "reason"),
    [
        ("add", {"deletionVector": {"storageType": "u"}}, "has deleted rows in it (a deletion vector)"),
        ("add", {"path": "s3://other/table/part.parquet"}, "is another table's, of which it is a shallow clone"),
        ("add", {"partitionValues": {"day": "1"}}, "do not name the values of its partition"),
        (
            "metaData",
            {"configuration": {"delta.columnMapping.mode": "name"}},
            "its columns have other names in its files",
        ),
        ("protocol", {"readerFeatures": ["catalogManaged"]}, "it needs catalogManaged of readers"),
    ],
)
def test_rows_of_delta_that_their_files_do_not_show_are_refused_with_the_reason(
    delta: WrittenDelta, action: str, given: dict[str, object], reason: str
) -> None:
    last = delta.append(1)
    delta.append(2)
    newest = str(int(last) + 1)
    forge(delta, action, **given)

    [commit] = log_of(delta).since(last)

    assert reason in commit.refused
    assert reason in log_of(delta).whole(newest).refused


def test_a_deletion_vector_on_a_file_of_before_is_a_deletion(delta: WrittenDelta) -> None:
    last = delta.append(1, 2)
    [path] = log_of(delta).whole(last).files
    delta.append()
    forge(delta, "remove", path=path, dataChange=True)
    forge(delta, "add", path=path, size=1, dataChange=True, partitionValues={}, deletionVector={"storageType": "u"})

    *_, commit = log_of(delta).since(last)

    assert (commit.removes, dict(commit.files), commit.refused) == (True, {}, "")


def test_rows_that_are_restored_after_their_deletion_are_a_change(delta: WrittenDelta) -> None:
    then = delta.append(1, 2)
    last = delta.delete("id > 0")
    delta.table.restore(int(then))

    [commit] = log_of(delta).since(last)

    assert commit.removes
    assert ids_of(delta, commit) == Counter([1, 2])


def test_a_checkpoint_with_sidecars_is_refused(delta: WrittenDelta) -> None:
    last = delta.append(1)
    delta.expire()
    [checkpoint] = (delta.folder / "_delta_log").glob("*.checkpoint.parquet")
    actions = pq.read_table(checkpoint)
    paths = pa.array([{"path": "part.parquet"}] * len(actions), pa.struct([("path", pa.string())]))
    pq.write_table(actions.append_column("sidecar", paths), checkpoint)

    assert "its checkpoint has files beside it (sidecars)" in log_of(delta).whole(last).refused


def test_a_delta_log_is_put_together_from_a_checkpoint_in_parts(delta: WrittenDelta) -> None:
    delta.append(1)
    last = delta.append(2)
    delta.expire()
    log = delta.folder / "_delta_log"
    [one] = log.glob("*.checkpoint.parquet")
    one.rename(log / one.name.replace(".parquet", ".0000000001.0000000002.parquet"))

    with pytest.raises(TableRefused, match="cannot be put together: commit 0 is gone, and no checkpoint"):
        log_of(delta).whole(last)
