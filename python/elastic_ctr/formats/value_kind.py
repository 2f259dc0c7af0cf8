"""The names of the kinds of values, separate from the arithmetic, because commands that read settings must start without numpy."""

from typing import Literal

ValueKind = Literal["float32", "float16", "int8"]
VALUE_KINDS: tuple[ValueKind, ...] = ("float32", "float16", "int8")


def kind_of(name: str) -> ValueKind:
    """Return the kind of that name in a message; "" is float32, the only kind of earlier releases. Raises ValueError."""
    for kind in VALUE_KINDS:
        if kind == (name or "float32"):
            return kind
    raise ValueError(f"values are stored as {', '.join(VALUE_KINDS)}, not as {name}; are all roles of one release?")
