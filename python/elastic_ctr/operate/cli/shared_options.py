"""Options that several commands share. A dataclass of options can be one parameter of a command."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from elastic_ctr.config.cube_settings import CubeTransferConfig
from elastic_ctr.config.serving_settings import ServingConfig
from elastic_ctr.config.training_settings import MasterConfig
from elastic_ctr.operate.local.run_folder import DEFAULT_FOLDER

RELEASE = "ctr"
_PANEL = "In a cluster (through kubectl, from PATH or $KUBECTL)"


@dataclass(frozen=True)
class Endpoint:
    """A port of a component: its name in the pod, and its default number."""

    component: str
    port_name: str
    port: int

    @property
    def default(self) -> str:
        return f"127.0.0.1:{self.port}"


MASTER_STATUS = Endpoint("master", "status", MasterConfig().status_port)
TRANSFER = Endpoint("cube-transfer", "release", CubeTransferConfig().port)
SERVING_ADMIN = Endpoint("serving", "admin", ServingConfig().admin_port)
PREDICTIONS = Endpoint("serving", "predict", ServingConfig().port)


def _address(endpoint: Endpoint, *names: str, help: str) -> Any:  # noqa: A002 (typer's own name for it)
    return typer.Option(*names, metavar="HOST:PORT", help=help, show_default=endpoint.default)


MasterAddress = Annotated[str | None, _address(MASTER_STATUS, "--address", help="The master's status endpoint.")]
TransferAddress = Annotated[str | None, _address(TRANSFER, "--transfer", help="The address of cube-transfer.")]
ServingAdminAddress = Annotated[str | None, _address(SERVING_ADMIN, "--serving", help="Serving's admin endpoint.")]
PredictionsAddress = Annotated[
    str | None, _address(PREDICTIONS, "--address", "-a", help="Serving's port for predictions.")
]
ModelName = Annotated[
    str | None,
    typer.Option("--model", help="The name that serving gives its model.", show_default=ServingConfig().model_name),
]
OperatorTokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="ELASTIC_CTR_TOKEN_FILE",
        help="A file with a line `name token`, of the right `operate`: `tokens/operate` in the folder of a local run, "
        f"{DEFAULT_FOLDER / 'tokens' / 'operate'} by default. In a cluster the Secret is read, if you may.",
    ),
]
RunDir = Annotated[Path, typer.Option("--dir", help="Where state, logs and published versions are kept.")]
StoreTokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        envvar="ELASTIC_CTR_INTERNAL_TOKEN_FILE",
        help="A file with a line `name token`, of the right `internal`: a file-server wants it for every change.",
    ),
]
OutputFile = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write there, whole or not at all, instead of to stdout.")
]
Folder = Annotated[
    Path | None, typer.Option("--dir", help="The folder of a run on this machine.", show_default=str(DEFAULT_FOLDER))
]
C = TypeVar("C", bound=Callable[..., Any])


def grouped(command: C) -> C:
    """Return the command with each dataclass parameter replaced by the fields of the dataclass."""
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
                each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=of_group[each.name]
            )
            for each in fields(groups[name])
        ]
    call.__name__, call.__doc__, call.__module__ = command.__name__, command.__doc__, command.__module__
    call.__annotations__ = {each.name: each.annotation for each in flat}
    call.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]  # what typer reads
    return call  # type: ignore[return-value]  # it is called with the flat parameters by typer alone


@dataclass(frozen=True)
class Where:
    """The options that name a release or run."""

    folder: Folder = None
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Where the release is.", rich_help_panel=_PANEL)
    ] = None
    release: Annotated[
        str | None, typer.Option("--release", help="Its name.", show_default=RELEASE, rich_help_panel=_PANEL)
    ] = None
    context: Annotated[
        str | None, typer.Option("--context", help="Another context than kubectl's current.", rich_help_panel=_PANEL)
    ] = None
