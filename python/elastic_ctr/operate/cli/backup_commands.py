"""elastic-ctr backup and elastic-ctr restore."""

import os
import sqlite3
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from pydantic import BaseModel, ConfigDict

from elastic_ctr import __version__
from elastic_ctr.config.load import ConfigRefused, load
from elastic_ctr.config.role_files import MasterFile
from elastic_ctr.cube.release import Placement, ReleaseDocument
from elastic_ctr.cube.transfer.state import document_of
from elastic_ctr.cube.transfer.state_file import PersistedState
from elastic_ctr.operate.cli.cluster import Cluster, port_forwards, target_of, tokens_of
from elastic_ctr.operate.cli.entrypoint import checked, reason_of, refuse
from elastic_ctr.operate.cli.given_values import SetFile, ValuesFile, values_of
from elastic_ctr.operate.cli.kubectl import KubectlFailed
from elastic_ctr.operate.cli.shared_options import MASTER_STATUS, TRANSFER, RunDir, StoreTokenFile, Where, grouped
from elastic_ctr.operate.local.endpoints import EndpointUnavailable, release_document
from elastic_ctr.operate.local.plan import RunPlaces
from elastic_ctr.operate.local.run_folder import DEFAULT_FOLDER, RunFolder
from elastic_ctr.runtime.auth import Right, Tokens, tokens_in
from elastic_ctr.runtime.documents import read_document
from elastic_ctr.runtime.lock import StateLock
from elastic_ctr.runtime.sqlite_file import copy_database
from elastic_ctr.sources.intake.click_log import SCHEMA as CLICKS_SCHEMA
from elastic_ctr.store.backends import open_store
from elastic_ctr.store.backends.address import lies_in
from elastic_ctr.store.versions.backup import (
    CLICKS,
    LEDGER,
    RELEASE,
    BackupManifest,
    BackupRefused,
    Overtaken,
    Part,
    State,
    back_up,
    scratch_in,
)
from elastic_ctr.store.versions.restore import RestoredDatabase
from elastic_ctr.store.versions.restore import restore as fill
from elastic_ctr.training.master.ledger.ledger_file import LEDGER as LEDGER_FILE
from elastic_ctr.training.master.ledger.ledger_file import SCHEMA as LEDGER_SCHEMA
from elastic_ctr.training.master.ledger.ledger_file import LedgerFile, naming_damage
from elastic_ctr.training.master.ledger.save_table import SaveTable

_MEGABYTE = 1e6
# The exit code of the command in the pod, where a newer release document may help, and how often it is then run.
_OVERTAKEN, _ROUNDS = 75, 3
Address = Annotated[str, typer.Option("--to", metavar="URL", help="An address such as `store.config.url` takes.")]
User = Annotated[str, typer.Option("--user", help="User at that address; HDFS checks it.")]


class _Sent(BaseModel):
    """The part of a backup that the master's pod lacks. The command sends it to the pod."""

    model_config = ConfigDict(extra="forbid")

    release: ReleaseDocument | None
    tokens: str | None


class _Roles(NamedTuple):
    """The places of the roles' state, on this machine."""

    settings: MasterFile
    release: Callable[[], ReleaseDocument | None]
    clicks: Path | None

    def state(self, folder: Path) -> State:
        """Copy the state. Raises BackupRefused, LedgerDamaged, NewerSchema, DocumentDamaged, sqlite3.Error, OSError."""
        # Before the ledger, which then has the live version.
        release = self.release()
        files: dict[Part, Path] = {LEDGER: folder / LEDGER}
        source = Path(self.settings.master.state_dir) / LEDGER_FILE
        if source.exists():
            with naming_damage(source):
                copy_database(source, files[LEDGER])
        # Not `Ledger`, whose packages take 90 MB: in a cluster the master's memory limit is of this process, too.
        with closing(LedgerFile(files[LEDGER])) as ledger:
            facts, checkpoints = ledger.facts, SaveTable(ledger).checkpoints()
        if not facts.id:
            raise BackupRefused(f"{source} has no training: the master has not begun, so there is nothing to back up")
        if self.clicks is not None:
            # After the ledger, so that it has every offset that a pass of the ledger names.
            files[CLICKS] = folder / CLICKS
            copy_database(self.clicks, files[CLICKS])
        if release is not None:
            files[RELEASE] = folder / RELEASE
            files[RELEASE].write_bytes(release.model_copy(update={"holders": {}}).to_json())
        return State(
            release=facts.id,
            live=None if release is None else release.live,
            newest=facts.last_version,
            checkpoints=needed_checkpoints(checkpoints),
            files=files,
        )


def needed_checkpoints(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names of the newest checkpoint of a whole pass, of those after it, and of the one that it stands on."""
    whole = [number for number, row in enumerate(rows) if row["mid"] is None]
    newest = rows[whole[-1] if whole else 0 :]
    names = [str(name) for row in newest for name in (row["stands_on"], row["name"]) if name]
    return list(dict.fromkeys(names))


@grouped
def backup(
    to: Address,
    user: User = "root",
    token_file: StoreTokenFile = None,
    where: Where = Where(),
    in_pod: Annotated[
        bool, typer.Option("--in-pod", hidden=True, help="Run in the master's pod, which has the ledger.")
    ] = False,
) -> None:
    """Copy a release to another address while it runs: ledger, checkpoint, live version. A repetition copies only what is new.

    Exit codes: 0 the backup is complete; 1 it is not, and a repetition goes on with it; 2 it is refused (the reason is printed).
    """
    if in_pod:
        sent = read_document(_Sent, sys.stdin.buffer.read())
        tokens = None if sent.tokens is None else Tokens(tokens_in(sent.tokens.encode(), "--token-file"))
        settings = load(MasterFile, Path(os.environ["ELASTIC_CTR_CONFIG"]))
        _back_up(_Roles(settings, lambda: sent.release, None), to, user, tokens, overtaken=_OVERTAKEN)
        return
    given = None if token_file is None else tokens_of(token_file)
    cluster = target_of(where, {}).cluster
    if cluster is not None:
        _back_up_in(cluster, to, user, None if token_file is None else token_file.read_text())
    run = RunFolder(where.folder or DEFAULT_FOLDER)
    config, state, log = (
        run.path / name for name in ("config/ctr-master-0.yaml", "state", "state/intake/clicks.sqlite")
    )
    document = state / "cube-transfer" / "release.json"
    try:
        settings = load(MasterFile, config)
        _release_in(document)
    except (ConfigRefused, ValueError) as wrong:
        refuse(f"{run.path} has no run that can be backed up: {wrong}; --dir names another folder")
    with run.private():
        _back_up(_Roles(settings, lambda: _release_in(document), log if log.exists() else None), to, user, given)


def _release_in(file: Path) -> ReleaseDocument | None:
    """Return the release document by the state of cube-transfer, None if it has none. Raises DocumentDamaged, OSError."""
    if not file.exists():
        return None
    kept = read_document(PersistedState, file.read_bytes())
    return document_of(kept.state, kept.revisions, Placement(shards=1), {})


def _back_up_in(cluster: Cluster, to: str, user: str, tokens: str | None) -> None:
    """Run the command in the master's pod, which alone has the ledger. Ends this command with its exit code."""
    try:
        for _ in range(_ROUNDS):
            release = None
            if cluster.has(TRANSFER.component):
                with port_forwards(cluster) as forwards:
                    release = release_document(forwards.address(TRANSFER))
            sent = _Sent(release=release, tokens=tokens).model_dump_json(by_alias=True).encode()
            words = ("elastic-ctr", "backup", "--in-pod", "--to", to, "--user", user)
            pod = cluster.pod(MASTER_STATUS.component)
            code = cluster.kubectl.executed(pod.name, MASTER_STATUS.component, *words, given=sent)
            if code != _OVERTAKEN:
                raise typer.Exit(code)
    except (EndpointUnavailable, KubectlFailed) as failed:
        refuse(str(failed))
    raise typer.Exit(1)


def _back_up(roles: _Roles, to: str, user: str, tokens: Tokens | None, overtaken: int = 1) -> None:
    settings, began = roles.settings, time.monotonic()
    place = settings.restore.at(to, user, settings.store)
    if lies_in(place, settings.store):
        refuse(f"--to {to} is the release's own store, which would be lost with it; give another address")
    try:
        store = open_store(settings.store, tokens=checked(settings.auth).internal())
        target = open_store(place, tokens=tokens)
        with scratch_in(Path(settings.master.state_dir)) as folder:
            done = back_up(store, target, lambda: roles.state(folder), folder, __version__, _said)
    except ValueError as wrong:
        refuse(str(wrong))
    except Overtaken as late:
        refuse(f"{late}; run it again, what is copied stays", overtaken)
    except (OSError, sqlite3.Error) as failed:
        refuse(f"the backup is not complete: {reason_of(failed)}; run it again, what is copied stays", 1)
    new = f"{done.files} new files, {done.bytes / _MEGABYTE:.1f} MB, in {time.monotonic() - began:.1f} s"
    typer.echo(f"{_contents(done.manifest)} is in {to}: {new}")


def restore(
    url: Annotated[str, typer.Option("--from", metavar="URL", help="The address that `backup --to` was given.")],
    values: ValuesFile,
    folder: RunDir = DEFAULT_FOLDER,
    user: User = "root",
    set_file: SetFile = None,
) -> None:
    """Fill the folder of a run that was never started, and its store, from a backup. In a cluster `restore.url` does the same.

    Exit codes: 0 it is restored; 1 it is not, and a repetition goes on with it; 2 it is refused (the reason is printed).
    """
    try:
        places = RunPlaces(folder.resolve(), values_of(values, set_file))
    except ConfigRefused as wrong:
        refuse(str(wrong))
    run, began = RunFolder(places.folder), time.monotonic()
    state: dict[Part, RestoredDatabase] = {
        LEDGER: RestoredDatabase(Path(places.state("master")) / LEDGER_FILE, LEDGER_SCHEMA),
        CLICKS: RestoredDatabase(Path(places.state("intake")) / "clicks.sqlite", CLICKS_SCHEMA),
    }
    try:
        with run.private(), StateLock(places.folder / "state"), scratch_in(Path(places.state("master"))) as scratch:
            run.write_tokens()
            store = open_store(places.store, tokens=tokens_of(run.token_file(Right.INTERNAL)))
            source = open_store(places.values.restore.at(url, user, places.store))
            found = fill(source, store, state, scratch, _said)
    except ValueError as wrong:
        refuse(str(wrong))
    except OSError as failed:
        refuse(f"the restore is not complete: {reason_of(failed)}; run it again, what is restored stays", 1)
    took = time.monotonic() - began
    typer.echo(
        f"{_contents(found)} is restored into {places.folder}, in {took:.1f} s; `elastic-ctr local up` goes on with it"
    )


def _contents(manifest: BackupManifest) -> str:
    live = "no live version" if manifest.live is None else f"version {manifest.live}"
    return f"{live}, with {f'checkpoint {manifest.checkpoint}' if manifest.checkpoint else 'no checkpoint'},"


def _said(sentence: str) -> None:
    typer.echo(sentence, err=True)
