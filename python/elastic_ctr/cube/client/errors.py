"""What a reader of cube is told when it gets no values."""


class VersionNotHeld(LookupError):
    """A version, or a partition of it, is not where it was said to be: take the newest document and ask again."""

    def __init__(self, version: int, reason: str = "") -> None:
        super().__init__(f"version {version} is not held{': ' + reason if reason else ''}")
        self.version = version
        self.reason = reason


class CubeUnavailable(RuntimeError):
    """No holder answered: who was asked and what came of it."""
