"""One line per event: UTC time, level, role, message. Secrets are never logged."""

import json
import logging
import os
import sys
from datetime import datetime, timezone
from typing import Literal, TextIO

LogFormat = Literal["text", "json"]


class _Formatter(logging.Formatter):
    def __init__(self, role: str, *, as_json: bool) -> None:
        super().__init__()
        self._role = role
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, timezone.utc)
        time = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
        message = record.getMessage()
        if record.exc_info:
            # A traceback stays inside its event's one line.
            message += " | " + self.formatException(record.exc_info)
        message = message.replace("\r", " ").replace("\n", " | ")
        if not self._as_json:
            return f"{time} {record.levelname:<7} {self._role} {message}"
        fields = {"time": time, "level": record.levelname, "role": self._role, "message": message}
        return json.dumps(fields, ensure_ascii=False)


def configure(role: str, level: str = "INFO", log_format: LogFormat = "text", stream: TextIO | None = None) -> None:
    """Send every logger's events to stderr (or `stream`), in place of any earlier configuration."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Formatter(role, as_json=log_format == "json"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # Paddle sets the root logger's level when it is imported, so ours is set by name. A module run by `python -m` logs as __main__.
    for ours in ("elastic_ctr", "__main__"):
        logging.getLogger(ours).setLevel(level)
    # These libraries log each request, also of a poll every second, and lines at start-up.
    for noisy in ("httpx", "httpcore", "uvicorn", "uvicorn.access", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.root.level))


def configure_from_environment(role: str) -> None:
    """Configure logging from ELASTIC_CTR_LOG_LEVEL and ELASTIC_CTR_LOG_FORMAT, which a role's child processes inherit."""
    log_format = os.environ.get("ELASTIC_CTR_LOG_FORMAT", "text")
    configure(role, os.environ.get("ELASTIC_CTR_LOG_LEVEL", "INFO"), "json" if log_format == "json" else "text")
