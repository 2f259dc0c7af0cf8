"""Options that several commands share: a dataclass that stands as one parameter of a command."""

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from elastic_ctr.local.run_folder import DEFAULT_FOLDER

RELEASE = "ctr"
_PANEL = "In a cluster (through kubectl, from PATH or $KUBECTL)"
Folder = Annotated[
    Path | None,
    typer.Option("--dir", help="The folder of a run on this machine.", show_default=str(DEFAULT_FOLDER)),
]
C = TypeVar("C", bound=Callable[..., Any])


def grouped(command: C) -> C:
    """The command with each parameter whose type is a dataclass replaced by the fields of that dataclass."""
    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    groups = {name: hints[name] for name in parameters if is_dataclass(hints[name])}

    def call(**given: Any) -> Any:
        for name, kind in groups.items():
            given[name] = kind(**{each.name: given.pop(each.name) for each in fields(kind)})
        return command(**given)

    flat: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        if name not in groups:
            flat.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[name]))
            continue
        of_group = get_type_hints(groups[name], include_extras=True)
        flat += [
            inspect.Parameter(
                each.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if each.default is MISSING else each.default,
                annotation=of_group[each.name],
            )
            for each in fields(groups[name])
        ]
    call.__name__, call.__doc__, call.__module__ = command.__name__, command.__doc__, command.__module__
    call.__annotations__ = {each.name: each.annotation for each in flat}
    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]  # what typer reads
    return call  # type: ignore[return-value]  # it is called with the flat parameters by typer alone


@dataclass(frozen=True)
class Where:
    """The options that say which release or run is meant."""

    folder: Folder = None
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Where the release is.", rich_help_panel=_PANEL)
    ] = None
    release: Annotated[
        str | None,
        typer.Option("--release", help="Its name.", show_default=RELEASE, rich_help_panel=_PANEL),
    ] = None
    context: Annotated[
        str | None, typer.Option("--context", help="Another context than kubectl's current.", rich_help_panel=_PANEL)
    ] = None
