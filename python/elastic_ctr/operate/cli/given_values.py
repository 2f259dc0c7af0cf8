"""The values files that a command is given."""

import re
from pathlib import Path
from typing import Annotated

import typer

from elastic_ctr.config.load import ConfigRefused, read_yaml, settings
from elastic_ctr.config.own_network import read_source
from elastic_ctr.config.values_file import Values
from elastic_ctr.operate.cli.entrypoint import reason_of, refuse

ValuesFile = Annotated[list[Path], typer.Option("--values", "-f", help="A values file; of several the later one wins.")]
SetFile = Annotated[
    list[str] | None,
    typer.Option(
        "--set-file",
        help="KEY=FILE: the file's text as a value, as helm takes it; for data.slots=slot.conf and model.network.source=my_network.py.",
    ),
]
# The most bytes of a `--set-file`, above the limit of etcd and so of the chart.
_MOST_BYTES = 16 << 20
_MLFLOW_URL = "http://127.0.0.1:5000"


def merged(below: dict[str, object], above: dict[str, object]) -> dict[str, object]:
    """Merge values files key by key, later ones winning, as in Helm. A null removes an earlier file's value and leaves the default. Helm
    does so only for keys in the chart's own values, and keeps it in others, such as a network's layers, where the chart refuses it.
    """
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        if value is None and key in result:
            del result[key]
        else:
            result[key] = merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def _read_values(file: Path) -> dict[str, object]:
    """Return the values in a file. Paths are relative to its folder: that of a `data.source.url` such as `file:.`, and
    `model.network.file`, whose text becomes `model.network.source`.
    """
    values = read_yaml(file)
    match values:
        case {"model": {"network": {"file": str(name)} as network}} if "source" not in network:
            try:
                network["source"] = read_source(file.resolve().parent / name)
            except (OSError, ValueError) as failed:
                raise ConfigRefused(f"{file}: model.network.file {name!r}: {reason_of(failed)}") from failed
            del network["file"]
    match values:
        case {"data": {"source": {"url": str(url)} as source}} if re.match(r"(delta\+)?file:(?!/)", url):
            kind, _, rest = url.partition("file:")
            path, mark, query = rest.partition("?")
            source["url"] = kind + (file.resolve().parent / path).resolve().as_uri() + mark + query
    return values


def read_values(
    files: list[Path], set_files: list[str] | None, end: str | None = None, *, for_helm: bool = False
) -> tuple[dict[str, object], dict[str, dict[str, object]]]:
    """Return values files as one, and each by its name; `end` replaces data.end. With `for_helm`, paths stay as they are written.

    Raises ConfigRefused.
    """
    read = read_yaml if for_helm else _read_values
    parts: dict[str, dict[str, object]] = {str(file): read(file) for file in files}
    for each in set_files or []:
        key, equals, file_name = each.partition("=")
        if not equals:
            raise ConfigRefused(f"--set-file {each!r} is not KEY=FILE")
        try:
            with Path(file_name).open("rb") as opened:
                raw = opened.read(_MOST_BYTES + 1)
            value: object = raw.decode("utf-8") if len(raw) <= _MOST_BYTES else None
        except (OSError, ValueError) as failed:
            raise ConfigRefused(f"--set-file {each!r}: {reason_of(failed)}") from failed
        if value is None:
            raise ConfigRefused(f"--set-file {each!r}: it has more than {_MOST_BYTES >> 20} MiB, the most of a value")
        first, *steps = key.split(".")
        for step in reversed(steps):
            value = {step: value}
        parts[f"--set-file {each}"] = {first: value}
    if end is not None:
        parts["--to"] = {"data": {"end": end}}
    given: dict[str, object] = {}
    for part in parts.values():
        given = merged(given, part)
    tracking, local = given.get("tracking"), given.get("local")
    if isinstance(tracking, dict) and tracking.get("enabled") is True and isinstance(local or {}, dict):
        # The chart has its own MLflow server; a run on this machine uses the user's, at its default port.
        given = merged({"local": {"trackingUrl": _MLFLOW_URL}}, given)
    return given, parts


def load_values(
    files: list[Path], set_files: list[str] | None, end: str | None = None, *, for_helm: bool = False
) -> Values:
    """Load values files; `end` replaces data.end. With `for_helm`, what only this machine can read is refused. Raises ConfigRefused."""
    given, parts = read_values(files, set_files, end, for_helm=for_helm)
    return settings(Values, given, " + ".join(map(str, files)), parts)


def values_of(files: list[Path], set_files: list[str] | None, *, for_helm: bool = False) -> Values:
    """Load values files. Ends the command with a sentence for each error."""
    try:
        return load_values(files, set_files, for_helm=for_helm)
    except ConfigRefused as wrong:
        refuse(str(wrong))
