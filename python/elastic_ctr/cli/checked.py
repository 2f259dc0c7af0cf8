"""What a check comes to."""

from typing import Any, Protocol


class CheckFailed(RuntimeError):
    """It is not so: one sentence. `may_pass`: it may have been seen half way, and be so in a moment."""

    def __init__(self, sentence: str, *, may_pass: bool = False) -> None:
        super().__init__(sentence)
        self.may_pass = may_pass


class Checked(Protocol):
    """What was seen, for people and for programs."""

    def sentence(self) -> str: ...

    def as_dict(self) -> dict[str, Any]: ...
