"""Shell assignments, read as text: `export NAME="value"  # comment`. Nothing is executed and nothing is filled in.

Quotes, escapes, comments, `;` and several assignments on a line mean what they mean to a shell. What a shell would
execute is refused. A value with a variable in it is kept as such: whoever needs it refuses it, whoever has it from
elsewhere does not care.
"""

import re
from typing import NamedTuple

_EXPORT = re.compile(r"export(?=[ \t]|$)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE = re.compile(r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[^}]*\}|[0-9?#$!@*'\"-])")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]")
_BLANKS = " \t"
_ENDS_WORD = _BLANKS + ";"
_OPERATORS = "&|<>()"


class AssignmentRefused(ValueError):
    """A line is more than assignments: which line, what stands there, what to do."""


class Assignment(NamedTuple):
    """`variable` is the first piece that a shell would have filled in; then `value` is not the whole value."""

    line: int
    value: str
    variable: str | None


def read_assignments(text: str) -> dict[str, Assignment]:
    """The assignments of a file by name, in order. Raises AssignmentRefused."""
    found: dict[str, Assignment] = {}
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        for name, assignment in _Line(line.removesuffix("\r"), number).assignments():
            if name in found:
                raise AssignmentRefused(
                    f"{name} stands on line {found[name].line} and again on line {number}; keep one"
                )
            found[name] = assignment
    return found


class _Line:
    def __init__(self, text: str, number: int) -> None:
        self._text = text
        self._number = number
        self._at = 0

    def assignments(self) -> list[tuple[str, Assignment]]:
        if control := _CONTROL.search(self._text):
            raise self._refusal(f"{control[0]!r} is a control character; remove it")
        found: list[tuple[str, Assignment]] = []
        exporting = False
        while self._skip_blanks():
            if self._text[self._at] == ";":
                exporting = False
                self._at += 1
                continue
            if match := _EXPORT.match(self._text, self._at):
                exporting = True
                self._at = match.end()
                continue
            name = _NAME.match(self._text, self._at)
            if name is None or not self._text.startswith("=", name.end()):
                if exporting and name is not None and self._text[name.end() : name.end() + 1] in ("", *_ENDS_WORD):
                    # `export NAME` after NAME=value: says nothing new.
                    self._at = name.end()
                    continue
                raise self._refusal(
                    f"{self._text[self._at : self._at + 40]!r} is not NAME=VALUE; only assignments are read, nothing is executed"
                )
            self._at = name.end() + 1
            found.append((name[0], self._value(name[0])))
        return found

    def _skip_blanks(self) -> bool:
        """Whether anything but a comment follows."""
        while self._at < len(self._text) and self._text[self._at] in _BLANKS:
            self._at += 1
        return self._at < len(self._text) and self._text[self._at] != "#"

    def _value(self, name: str) -> Assignment:
        value: list[str] = []
        variables: list[str] = []
        text = self._text
        if text.startswith("~", self._at):
            variables.append("~")
        while self._at < len(text) and (char := text[self._at]) not in _ENDS_WORD:
            if char == "'":
                value.append(self._single_quoted(name))
            elif char == '"':
                self._double_quoted(name, value, variables)
            elif char in "$`":
                self._expansion(name, value, variables)
            elif char in _OPERATORS:
                raise self._refusal(
                    f"{name} is followed by {char!r}, which belongs to a command; put the value in quotes"
                )
            elif char == "\\":
                if self._at + 1 == len(text):
                    raise self._refusal(f"{name} goes on in the next line; write it on one line")
                value.append(text[self._at + 1])
                self._at += 2
            else:
                value.append(char)
                self._at += 1
        return Assignment(self._number, "".join(value), variables[0] if variables else None)

    def _single_quoted(self, name: str) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise self._unclosed(name)
        inside = self._text[self._at + 1 : end]
        self._at = end + 1
        return inside

    def _double_quoted(self, name: str, value: list[str], variables: list[str]) -> None:
        text = self._text
        self._at += 1
        while self._at < len(text):
            char = text[self._at]
            if char == '"':
                self._at += 1
                return
            if char in "$`":
                # "$'" is two characters between double quotes.
                self._expansion(name, value, variables, quotes="'\"")
            elif char == "\\" and text[self._at + 1 : self._at + 2] in ("$", "`", '"', "\\"):
                value.append(text[self._at + 1])
                self._at += 2
            else:
                value.append(char)
                self._at += 1
        raise self._unclosed(name)

    def _expansion(self, name: str, value: list[str], variables: list[str], quotes: str = "") -> None:
        if self._text[self._at] == "`" or self._text.startswith("$(", self._at):
            raise self._refusal(f"{name} holds a command, which nothing here executes; write what it would print")
        match = _VARIABLE.match(self._text, self._at)
        if match is None or (quotes and match[0][1] in quotes):
            if self._text.startswith(("${", "$["), self._at):
                raise self._refusal(f"{name} holds an expression, which nothing here works out; write the value itself")
            value.append("$")
            self._at += 1
            return
        if match[0][1] == "{" and ("$(" in match[0] or "`" in match[0]):
            raise self._refusal(f"{name} holds a command, which nothing here executes; write what it would print")
        variables.append(match[0])
        # Of `$'…'` only the dollar is special here: what follows is read as quoted.
        self._at = match.end() - (match[0][1] in "'\"")

    def _unclosed(self, name: str) -> AssignmentRefused:
        return self._refusal(f"the quotes around {name} are not closed on their line; close them there")

    def _refusal(self, sentence: str) -> AssignmentRefused:
        return AssignmentRefused(f"line {self._number}: {sentence}")
