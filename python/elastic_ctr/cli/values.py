"""elastic-ctr values: what elastic-control.sh was told, as a values file."""

import json
import os
import tempfile
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from elastic_ctr.cli.elastic_control import File, Options, ValuesRefused, text_of, translate
from elastic_ctr.cli.entrypoint import refuse
from elastic_ctr.cli.shared_options import grouped

_MOST_BYTES = 1 << 20
_OLD = "As elastic-control.sh had it"
_APPLY = "-a started everything; that is `helm upgrade --install ctr charts/elastic-ctr -f values.yaml` now"
_LOG = (
    "-l showed how far training is; that is `elastic-ctr status --namespace NAMESPACE` now, and the logs themselves are "
    "`elastic-ctr logs --namespace NAMESPACE`"
)
_CLIENT = "-c fetched a client; this program is one now: `elastic-ctr predict FILE --namespace NAMESPACE`"


def _instead(*names: str, sentence: str) -> Any:
    """An option that was a command: whatever else is given, it says which command it is now."""

    def told(asked: bool) -> None:
        if asked:
            refuse(sentence)

    return typer.Option(
        *names, is_eager=True, callback=told, help="Says which command it is now.", rich_help_panel=_OLD
    )


@dataclass(frozen=True)
class Sizes:
    """The options of elastic-control.sh that said how much of what."""

    cpu: Annotated[
        int | None, typer.Option("--cpu", "-u", min=1, help="Cores that each trainer and each pserver asks for.")
    ] = None
    mem: Annotated[
        int | None, typer.Option("--mem", "-m", min=1, help="Memory of each trainer and each pserver, in GiB.")
    ] = None
    trainer: Annotated[int | None, typer.Option("--trainer", "-t", min=1, help="Trainers.")] = None
    pserver: Annotated[int | None, typer.Option("--pserver", "-p", min=1, help="Parameter servers.")] = None
    cube: Annotated[int | None, typer.Option("--cube", "-b", min=1, help="Shards of the cube.")] = None
    hdfs_address: Annotated[
        str | None,
        typer.Option(
            "--hdfs-address", "-hd", "--hdfs_address", help="hdfs://NAMENODE:9000, whatever HDFS_ADDRESS says."
        ),
    ] = None


@dataclass(frozen=True)
class Commands:
    """The options of elastic-control.sh that were commands."""

    config_resource: Annotated[
        bool, typer.Option("-r", "--config_resource", help="That is this command.", rich_help_panel=_OLD)
    ] = False
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Changed nothing, and does not.", rich_help_panel=_OLD)
    ] = False
    apply: Annotated[bool, _instead("-a", "--apply", sentence=_APPLY)] = False
    log: Annotated[bool, _instead("-l", "--log", sentence=_LOG)] = False
    config_client: Annotated[bool, _instead("-c", "--config_client", sentence=_CLIENT)] = False


@grouped
def values(
    data_config: Annotated[
        Path, typer.Option("--data-config", "-f", "--datafile", help="Assignments of a shell; none is executed.")
    ] = Path("data.config"),
    slot_conf: Annotated[
        Path, typer.Option("--slot-conf", "-s", "--slot_conf", help="The slots that are trained, one a line.")
    ] = Path("slot.conf"),
    sizes: Sizes = Sizes(),
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write there, whole or not at all, instead of to stdout.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, which helm and `local run` take as well.")] = False,
    commands: Commands = Commands(),
) -> None:
    """Write a values file from a data.config, a slot.conf and the options of elastic-control.sh.

    data.config is read as text: quotes, comments and `export` are understood, nothing is executed or filled in.

    Exit codes: 0 written; 2 refused, with one sentence for each thing wrong.
    """
    del commands
    try:
        found = translate(
            _read(data_config, "--data-config"),
            _read(slot_conf, "--slot-conf"),
            Options(*astuple(sizes)),
        )
        text = json.dumps(found.values, indent=2) + "\n" if as_json else text_of(found.values)
        if output is None:
            typer.echo(text, nl=False)
        else:
            _write(output, text)
    except ValuesRefused as refused:
        refuse(str(refused))
    except OSError as failed:
        refuse(f"{output} cannot be written: {failed.strerror}")
    for note in found.notes:
        typer.echo(note, err=True)


def _read(file: Path, option: str) -> File:
    """Raises ValuesRefused."""
    try:
        with file.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
        if len(data) > _MOST_BYTES:
            raise ValuesRefused(f"{file} has more than {_MOST_BYTES} bytes; is it the right file for {option}?")
        return File(str(file), data.decode("utf-8"))
    except OSError as failed:
        raise ValuesRefused(f"{file} cannot be read: {failed.strerror}; say {option} FILE") from failed
    except UnicodeDecodeError as wrong:
        raise ValuesRefused(f"{file} is not text in UTF-8; is it the right file for {option}?") from wrong


def _write(output: Path, text: str) -> None:
    """Raises OSError."""
    handle, name = tempfile.mkstemp(prefix=f".{output.name}-", dir=output.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        temporary.chmod(0o644)
        temporary.replace(output)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
