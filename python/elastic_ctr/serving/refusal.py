"""What a request is answered with when it cannot be served: a status, and a sentence that names the field."""

from __future__ import annotations


class Refusal(Exception):
    """The request is answered with `status` (HTTP) and `sentence`; the server goes on."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.sentence = sentence


def shown(value: object) -> str:
    """A value from a request as it may stand in a sentence: short, and of one line."""
    if isinstance(value, str):
        text = repr(value[:40] + "…" if len(value) > 40 else value)
    elif isinstance(value, (dict, list)):
        text = "an object" if isinstance(value, dict) else "a list"
    elif value is None or isinstance(value, bool):
        text = {None: "null", True: "true", False: "false"}[value]
    else:
        text = str(value)
    return text
