"""Shell assignments, read as text: `export NAME="value"  # comment`. Nothing is executed or expanded.

Quotes, escapes, comments, `;` and several assignments on a line have their meaning in a shell; `shlex` does not distinguish `'$A'`
from `$A`, nor a `#` in a word from a comment. Commands are refused. A value with a variable in it is marked, so that a caller that
needs the value can refuse it.
"""

import re
from typing import NamedTuple

_EXPANSION = r"`|\$\(|\$\{[^}]*\}|\$\{|\$\[|\$[A-Za-z_][A-Za-z0-9_]*|\$[0-9?#$!@*-]"
_PIECE = re.compile(
    rf"""'(?P<literal>[^']*)'|"(?P<quoted>(?:[^"\\]|\\.)*)"|\\(?P<escaped>.)|(?P<expansion>{_EXPANSION}|\$(?=['"]))"""
    r"""|(?P<plain>\$|[^ \t;'"\\`$&|<>()]+)|(?P<operator>[&|<>()])|(?P<unclosed>['"\\])"""
)
_IN_QUOTES = re.compile(rf"""\\(?P<escaped>[$`"\\])|(?P<expansion>{_EXPANSION})|(?P<plain>.)""")
_EXPORT = re.compile(r"export(?=[ \t]|$)")
_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")
_EXPORTED = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?=[ \t;]|$)")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")


class AssignmentRefused(ValueError):
    """A line is not only assignments; the text has the line and the way out."""


class ShellAssignment(NamedTuple):
    """`variable` is the first piece that a shell would expand; `value` is incomplete then."""

    line: int
    value: str
    variable: str | None


def read_assignments(text: str) -> dict[str, ShellAssignment]:
    """Return the assignments of a file by name, in order. Raises AssignmentRefused."""
    found: dict[str, ShellAssignment] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        try:
            assigned = _assignments(line.removesuffix("\r"))
        except AssignmentRefused as refused:
            raise AssignmentRefused(f"line {number}: {refused}") from None
        for name, value, variable in assigned:
            if name in found:
                raise AssignmentRefused(
                    f"{name} stands on line {found[name].line} and again on line {number}; keep one"
                )
            found[name] = ShellAssignment(number, value, variable)
    return found


def _assignments(text: str) -> list[tuple[str, str, str | None]]:
    """Return name, value and first variable of each assignment of a line."""
    if control := _CONTROL.search(text):
        raise AssignmentRefused(f"{control[0]!r} is a control character; remove it")
    found: list[tuple[str, str, str | None]] = []
    at, exporting = 0, False
    while at < len(text) and text[at] != "#":
        if text[at] in " \t;":
            exporting = exporting and text[at] != ";"
            at += 1
        elif match := _EXPORT.match(text, at):
            at, exporting = match.end(), True
        elif match := _ASSIGNED.match(text, at):
            value, variable, at = _value(text, match.end(), match[1])
            found.append((match[1], value, variable))
        elif exporting and (match := _EXPORTED.match(text, at)):
            # `export NAME` after NAME=value adds nothing.
            at = match.end()
        else:
            raise AssignmentRefused(
                f"{text[at : at + 40]!r} is not NAME=VALUE; only assignments are read, nothing is executed"
            )
    return found


def _value(text: str, at: int, name: str) -> tuple[str, str | None, int]:
    """Return the value that begins at an offset, its first variable, and the offset of its end."""
    pieces: list[str] = []
    variables = ["~"] if text.startswith("~", at) else []
    while match := _PIECE.match(text, at):
        kind, piece = str(match.lastgroup), match[str(match.lastgroup)]
        if kind == "operator":
            raise AssignmentRefused(
                f"{name} is followed by {piece!r}, which belongs to a command; put the value in quotes"
            )
        if kind == "unclosed" and piece == "\\":
            raise AssignmentRefused(f"{name} goes on in the next line; write it on one line")
        if kind == "unclosed":
            raise AssignmentRefused(f"the quotes around {name} are not closed on their line; close them there")
        if kind == "expansion":
            # In `$'…'` only the dollar is handled here; the rest is read as a quoted text.
            variables.append(_variable(text[at : at + 2] if piece == "$" else piece, name))
        elif kind == "quoted":
            for inner in _IN_QUOTES.finditer(piece):
                if inner.lastgroup == "expansion":
                    variables.append(_variable(inner["expansion"], name))
                else:
                    pieces.append(inner[str(inner.lastgroup)])
        else:
            pieces.append(piece)
        at = match.end()
    return "".join(pieces), variables[0] if variables else None, at


def _variable(piece: str, name: str) -> str:
    """Return the variable that a shell would expand. Raises AssignmentRefused for a command or an expression."""
    if piece.startswith(("`", "$(")) or "$(" in piece or "`" in piece:
        raise AssignmentRefused(f"{name} holds a command, which nothing here executes; write what it would print")
    if piece in ("${", "$["):
        raise AssignmentRefused(f"{name} holds an expression, which nothing here works out; write the value itself")
    return piece
