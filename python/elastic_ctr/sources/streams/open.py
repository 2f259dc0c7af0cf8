"""Opens the stream at an address."""

from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from elastic_ctr.runtime.auth import Tokens
from elastic_ctr.sources.streams.interface import Stream
from elastic_ctr.store.backends import StoreError


def open_stream(
    url: str, kafka: Callable[[], Mapping[str, str]] = dict, tokens: Tokens | None = None, *, own: bool = False
) -> Stream:
    """Return the stream at `url`. `kafka` returns librdkafka's properties; for `tokens` and `own` see `IntakeLog`. Raises StoreError."""
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.query == "follow":
        from elastic_ctr.sources.streams.followed_folder import FollowedFolder

        return FollowedFolder(Path(unquote(parts.path)))
    if _is_topic(parts):
        return open_topic(url, kafka)
    if parts.scheme == "intake" and not (parts.path.strip("/") or parts.query or "@" in parts.netloc):
        from elastic_ctr.sources.streams.intake import IntakeLog

        if not parts.netloc:
            raise StoreError(
                f"{url} is the intake of a release, and this is none: give its address, as intake://host:8310"
            )
        return IntakeLog(parts.netloc, tokens=tokens, own=own)
    raise StoreError(
        f"data.source.url {url!r} is no stream; give kafka://broker:9092/topic, intake://host:8310 or file:///a/folder?follow"
    )


def open_topic(url: str, kafka: Callable[[], Mapping[str, str]] = dict) -> Stream:
    """Return the topic at `url`. Raises StoreError for any other address, and the errors of `kafka`."""
    parts = urlsplit(url)
    if not _is_topic(parts):
        raise StoreError(f"{url!r} is no topic; give kafka://broker:9092/topic")
    from elastic_ctr.sources.streams.kafka_topic import KafkaTopic

    return KafkaTopic(parts.netloc, parts.path.strip("/"), kafka)


def _is_topic(parts: SplitResult) -> bool:
    topic = parts.path.strip("/")
    return bool(parts.scheme == "kafka" and parts.netloc and topic and "/" not in topic)
