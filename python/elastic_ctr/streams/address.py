"""Which addresses are of streams; it imports little, for every role reads the settings of the data."""

from urllib.parse import urlsplit


def is_stream(url: str) -> bool:
    """Whether an address is of a stream, not of folders of hours."""
    parts = urlsplit(url)
    return parts.scheme == "kafka" or (parts.scheme == "file" and parts.query == "follow")
