"""`model.network` as a network of the user's own: the text of a Python file, which only trainers and pservers run."""

import ast
import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator, model_validator

from elastic_ctr.config.section import EXACT, Section

OWN = "own"
FUNCTION = "logit"
MAX_SOURCE = 65536
_MAX_SETTINGS, _MAX_ITEMS, _MAX_TEXT, _MAX_DEPTH = 64, 1024, 1024, 2
_NAME = "^[A-Za-z][A-Za-z0-9_]{0,63}$"
_SCALAR: dict[str, Any] = {"minimum": -EXACT, "maximum": EXACT, "maxLength": _MAX_TEXT, "maxItems": _MAX_ITEMS}
_SCALARS = ["boolean", "number", "string"]
_SETTINGS_SCHEMA: dict[str, Any] = {
    "type": "object",
    "maxProperties": _MAX_SETTINGS,
    "propertyNames": {"pattern": _NAME},
    "additionalProperties": {
        "type": [*_SCALARS, "array"],
        **_SCALAR,
        "items": {"type": [*_SCALARS, "array"], **_SCALAR, "items": {"type": _SCALARS, **_SCALAR}},
    },
}


def _settings(given: Any) -> dict[str, Any]:
    """Return the settings sorted by name, so that a model's digest does not depend on the order in the file."""
    if not isinstance(given, Mapping):
        raise ValueError(f"{str(given)[:80]!r} is not a map of settings by name")  # noqa: TRY004 (pydantic reads ValueError)
    if len(given) > _MAX_SETTINGS:
        raise ValueError(f"{len(given)} settings are more than {_MAX_SETTINGS}; put them into lists")
    wrong = [name for name in given if not _is_name(name)]
    if wrong:
        raise ValueError(f"{wrong[0]!r} is no name of a setting; use letters, digits and _, a letter first, at most 64")
    return {name: _setting(name, given[name]) for name in sorted(given)}


def _is_name(name: object) -> bool:
    return isinstance(name, str) and len(name) <= 64 and name.isascii() and name.isidentifier() and name[0] != "_"


def _setting(name: str, given: Any, depth: int = 0) -> Any:
    if isinstance(given, list | tuple):
        if depth == _MAX_DEPTH:
            raise ValueError(f"{name} is a list of lists of lists; a setting has lists in a list at most")
        if len(given) > _MAX_ITEMS:
            raise ValueError(f"{name} has a list of {len(given)} items; at most {_MAX_ITEMS} are taken")
        return tuple(_setting(name, each, depth + 1) for each in given)
    if isinstance(given, str):
        if len(given) > _MAX_TEXT:
            raise ValueError(f"{name} is a text of {len(given)} characters; at most {_MAX_TEXT} are taken")
        return given
    if isinstance(given, bool):
        return given
    if isinstance(given, int | float) and math.isfinite(given) and abs(given) <= EXACT:
        # Helm writes 2.0 as 2, and the model's digest must be the same in `elastic-ctr local` and in a cluster.
        return int(given) if given == int(given) else given
    raise ValueError(
        f"{name} is {str(given)[:80]}; a setting is a number up to 2^53, text, true, false, or a list of these or of such lists"
    )


def read_source(path: Path) -> str:
    """Return the text of a network's file. Raises OSError, ValueError."""
    with path.open("rb") as file:
        found = file.read(4 * MAX_SOURCE + 1)
    if len(found) > 4 * MAX_SOURCE:
        raise ValueError(_too_long(path))
    try:
        text = found.decode("utf-8-sig")
    except UnicodeDecodeError as wrong:
        raise ValueError(f"{path} is not text in UTF-8") from wrong
    if len(text) > MAX_SOURCE:
        raise ValueError(_too_long(path))
    return text


def _too_long(path: Path) -> str:
    return f"{path} has more than {MAX_SOURCE} characters; move what is long into a package of the image"


def _checked(source: str) -> str:
    """Return the text with LF line ends. It is parsed and never run. Raises ValueError if it is not Python or lacks `logit`."""
    text = source.removeprefix("\ufeff").replace("\r\n", "\n")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
            # The compiler finds errors that the parser does not, such as a `return` outside a function.
            compile(text, "model.network.source", "exec", dont_inherit=True)
    except SyntaxError as wrong:
        line = f"line {wrong.lineno} " if wrong.lineno else ""
        raise ValueError(f"{line}is not Python: {wrong.msg}") from wrong
    except (ValueError, RecursionError, MemoryError, OverflowError) as wrong:
        raise ValueError(f"is not Python: {str(wrong) or type(wrong).__name__}") from wrong
    if not any(map(_may_define, ast.walk(tree))):
        raise ValueError(
            f"has no function {FUNCTION}; add `def {FUNCTION}(inputs, settings)`, which returns [batch, 1]"
        )
    return text


def _may_define(node: ast.AST) -> bool:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return name == FUNCTION
        case ast.Name(id=name, ctx=ast.Store()):
            return name == FUNCTION
        case ast.alias(name=name, asname=other):
            return "*" in name or (other or name) == FUNCTION
        case _:
            return False


class OwnNetwork(Section):
    """A network of your own: a Python file with `logit(inputs, settings)`."""

    # The schema does not require `source`: a rule of the chart refuses a map with `file` alone, with a clearer message.
    model_config = ConfigDict(json_schema_extra=lambda schema: schema.pop("required"))

    name: Annotated[Literal["own"], WithJsonSchema({"type": "string", "maxLength": 64})] = Field(
        default="own", description="Not read beside source: Helm merges the chart's default name into every map."
    )
    source: str = Field(
        max_length=MAX_SOURCE,
        min_length=1,
        description="The text of the file: `--set-file model.network.source=my_network.py`, for helm and `elastic-ctr local` alike.",
    )
    file: str | None = Field(
        default=None,
        description="The file, counted from the folder of the values file. `elastic-ctr` reads it into source; the chart cannot.",
    )
    settings: Annotated[dict[str, Any], BeforeValidator(_settings), WithJsonSchema(_SETTINGS_SCHEMA)] = Field(
        default_factory=dict,
        description="What the function gets as its second argument: numbers, texts, true, false, and lists of them, by name.",
    )

    @model_validator(mode="before")
    @classmethod
    def _only_text(cls, given: Any) -> Any:
        if isinstance(given, dict) and given.get("file") is not None:
            if "source" in given:
                raise ValueError("it has a source and a file; leave one of them out")
            raise ValueError(
                f"the file {str(given['file'])[:200]} cannot be read from here; give its text: "
                f"--set-file model.network.source={str(given['file'])[:200]}"
            )
        return given

    _python = field_validator("source")(_checked)
