"""Recognises addresses of streams. It imports little, because every role reads the settings of the data."""

from urllib.parse import urlsplit

OWN_INTAKE = "intake://"
"""The release's own intake: chart and local runner put its address in."""


def is_stream(url: str) -> bool:
    """True if the address is of a stream, not of folders of hours."""
    parts = urlsplit(url)
    return parts.scheme in {"kafka", "intake"} or (parts.scheme == "file" and parts.query == "follow")
