"""elastic-ctr values: data.config, slot.conf and the options of elastic-control.sh, as a values file of the chart."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import yaml
from pydantic import ValidationError

from elastic_ctr.config.section import EXACT
from elastic_ctr.config.values_file import Values, sentences
from elastic_ctr.formats.slots import SlotList
from elastic_ctr.operate.cli.entrypoint import refuse
from elastic_ctr.operate.cli.shared_options import OutputFile, grouped
from elastic_ctr.operate.cli.shell_assignments import AssignmentRefused, ShellAssignment, read_assignments
from elastic_ctr.store.backends.temporary import appearing

_KEYS = {
    # as data.config names them: the key of the values file
    "HDFS_ADDRESS": "data.source.url",
    "HDFS_UGI": "data.source.user",
    "DATASET_PATH": "data.path",
    "START_DATE_HR": "data.start",
    "END_DATE_HR": "data.end",
    "SPARSE_DIM": "model.sparseDim",
}
_NEEDED = ("HDFS_ADDRESS", "START_DATE_HR")
_HEAD = """\
# Written by `elastic-ctr values`; what is not here has the chart's default.
#   in a cluster:     helm upgrade --install ctr charts/elastic-ctr --namespace ctr --create-namespace -f THIS_FILE
#   on this machine:  elastic-ctr local run -f THIS_FILE
"""
_MOST_BYTES = 1 << 20
_OLD = "As elastic-control.sh had it"
_APPLY = "-a started everything; that is `helm upgrade --install ctr charts/elastic-ctr -f values.yaml` now"
_LOG = (
    "-l showed how far training is; that is `elastic-ctr status --namespace NAMESPACE` now, and the logs themselves are "
    "`elastic-ctr logs --namespace NAMESPACE`"
)
_CLIENT = "-c fetched a client; this program is one now: `elastic-ctr predict FILE --namespace NAMESPACE`"


def _instead(*names: str, sentence: str) -> Any:
    """Return an option that was a command before; it prints the command that replaces it."""

    def told(asked: bool) -> None:
        if asked:
            refuse(sentence)

    return typer.Option(
        *names, is_eager=True, callback=told, help="Says which command it is now.", rich_help_panel=_OLD
    )


@dataclass(frozen=True)
class Sizes:
    """The options of elastic-control.sh for numbers of roles and their resources."""

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


class _Text(str):
    """Text that is quoted in the file, because YAML parsers do not agree on which words are numbers."""

    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, True))
_Dumper.add_representer(_Text, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


class ValuesRefused(ValueError):
    """The given files and options make no values file; the text has one sentence per line."""


class Translation(NamedTuple):
    """`notes` are sentences on settings without an equivalent here."""

    values: dict[str, Any]
    notes: list[str]


class File(NamedTuple):
    """The content of a file, with the name under which the user gave it."""

    name: str
    text: str


@grouped
def values(
    data_config: Annotated[
        Path, typer.Option("--data-config", "-f", "--datafile", help="Assignments of a shell; none is executed.")
    ] = Path("data.config"),
    slot_conf: Annotated[
        Path, typer.Option("--slot-conf", "-s", "--slot_conf", help="The slots that are trained, one a line.")
    ] = Path("slot.conf"),
    sizes: Sizes = Sizes(),
    output: OutputFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, which helm and `local run` take as well.")] = False,
    commands: Commands = Commands(),
) -> None:
    """Write a values file from a data.config, a slot.conf and the options of elastic-control.sh.

    data.config is read as text: quotes, comments and `export` are understood, nothing is executed or filled in.

    Exit codes: 0 written; 2 refused, with one sentence for each thing wrong.
    """
    del commands
    try:
        found = translate(_read(data_config, "--data-config"), _read(slot_conf, "--slot-conf"), sizes)
        text = json.dumps(found.values, indent=2) + "\n" if as_json else text_of(found.values)
        if output is None:
            typer.echo(text, nl=False)
        else:
            with appearing(output) as stream:
                stream.write(text.encode())
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


def translate(data_config: File, slot_conf: File, sizes: Sizes) -> Translation:
    """Return values that config.values_file.Values can load. Raises ValuesRefused."""
    try:
        assignments = read_assignments(data_config.text)
    except AssignmentRefused as refused:
        raise ValuesRefused(f"{data_config.name} {refused}") from refused
    if sizes.hdfs_address is not None:
        assignments["HDFS_ADDRESS"] = ShellAssignment(0, sizes.hdfs_address, None)
    wrong = [f"{data_config.name} {sentence}" for sentence in _wrong_with(assignments)]
    try:
        slots = SlotList.parse(slot_conf.text)
    except ValueError as refused:
        wrong.append(f"{slot_conf.name}: {refused}")
    if wrong:
        raise ValuesRefused("\n".join(wrong))
    user, comma, _ = _value(assignments, "HDFS_UGI").partition(",")
    notes = ["HDFS_UGI holds a password, which is left out: WebHDFS asks for the user alone"] if comma else []
    resources = _given({"cpu": sizes.cpu, "memory": None if sizes.mem is None else f"{sizes.mem}Gi"})
    values = _given(
        {
            "data": _given(
                {
                    "source": _given({"url": _value(assignments, "HDFS_ADDRESS"), "user": user}),
                    "path": _value(assignments, "DATASET_PATH"),
                    "start": _value(assignments, "START_DATE_HR"),
                    "end": _value(assignments, "END_DATE_HR"),
                    "slots": [_Text(name) for name in slots.names],
                }
            ),
            "model": _given({"sparseDim": _number_or_text(_value(assignments, "SPARSE_DIM"))}),
            "trainer": _given({"replicas": sizes.trainer, "resources": dict(resources)}),
            "pserver": _given({"replicas": sizes.pserver, "resources": dict(resources)}),
            "cube": _given({"config": _given({"shards": sizes.cube})}),
        }
    )
    try:
        Values.model_validate(values)
    except ValidationError as refused:
        raise ValuesRefused("\n".join(map(_in_their_words, sentences(refused, Values)))) from refused
    return Translation(values, notes)


def text_of(values: dict[str, Any]) -> str:
    """Return the text of the values file."""
    return _HEAD + yaml.dump(values, Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=100)


def _wrong_with(assignments: dict[str, ShellAssignment]) -> Iterator[str]:
    for name, each in assignments.items():
        where = f"line {each.line}: {name}"
        if name not in _KEYS:
            yield f"{where} is none of {', '.join(_KEYS)}; remove the line"
        elif each.variable is not None:
            way_out = ", or say --hdfs-address" if name == "HDFS_ADDRESS" else ""
            yield f"{where} holds {each.variable}, which nothing here fills in; write the value itself{way_out}"
        elif name == "HDFS_UGI" and each.value.startswith(","):
            yield f"{where} names no user before its comma; write HDFS_UGI=user"
    yield from (f"lacks {name}; add {name}=…" for name in _NEEDED if not _value(assignments, name))


def _value(assignments: dict[str, ShellAssignment], name: str) -> str:
    """Return the value of an assignment; empty if it is absent, as in a shell."""
    return assignments[name].value if name in assignments else ""


def _given(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that were given."""
    found = {key: value for key, value in settings.items() if value not in (None, "", {})}
    return {key: _Text(value) if type(value) is str else value for key, value in found.items()}


def _number_or_text(text: str) -> int | str:
    """Return a whole number as int if every YAML parser returns it digit by digit, else text."""
    if text.isascii() and text.isdigit() and text == str(int(text[:20])) and int(text) <= EXACT:
        return int(text)
    return _Text(text)


def _in_their_words(sentence: str) -> str:
    """Return the sentence with data.config's names in place of the keys that it has."""
    key = sentence.split(" ", 1)[0].rstrip(":")
    known = next((name for name, ours in _KEYS.items() if ours == key), None)
    return sentence if known is None else f"{known}: {sentence}"
