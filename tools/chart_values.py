"""charts/elastic-ctr/values.yaml: comments of the program's settings, the first sentences of their descriptions in the classes."""

import re
import textwrap
from collections.abc import Mapping

_KEY = re.compile(r"( *)([A-Za-z]\w*):")
_WIDTH = 138


def with_descriptions(values: str, descriptions: Mapping[str, str]) -> str:
    """The text of values.yaml with the comment of each key in `descriptions` replaced by the first sentence there."""
    written: list[str] = []
    path: list[str] = []
    begin = 0  # Of the comment above the next key, in `written`.
    for line in values.splitlines():
        text = line.strip()
        if text.startswith("# -- "):
            begin = len(written)
        elif found := _KEY.match(line):
            indent, name = found.groups()
            path = [*path[: len(indent) // 2], name]
            if wanted := descriptions.get(".".join(path)):
                sentence = re.split(r"(?<=\.) (?=[A-Z`])", wanted, maxsplit=1)[0]
                wrapped = textwrap.wrap(f"-- {sentence}", _WIDTH - len(indent) - 2)
                written[begin:] = [f"{indent}# {each}" for each in wrapped]
        written.append(line)
        if not text.startswith("#"):
            begin = len(written)
    return "\n".join(written) + "\n"
