"""One plain line per event: UTC time, level, role, message. Secrets are not events."""

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
    """Send every logger's events to stderr (or stream), once, whatever was configured before."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(_Formatter(role, as_json=log_format == "json"))
    logging.basicConfig(level=level, handlers=[handler], force=True)
    # Paddle sets the root's level when it is imported; ours is ours. A module that `python -m` runs logs as __main__.
    for ours in ("elastic_ctr", "__main__"):
        logging.getLogger(ours).setLevel(level)
    # A line for each request of a poll every second is noise, as are the start-up lines of libraries.
    for noisy in ("httpx", "httpcore", "uvicorn", "uvicorn.access", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, logging.root.level))


def configure_from_environment(role: str) -> None:
    """The same, as ELASTIC_CTR_LOG_LEVEL and ELASTIC_CTR_LOG_FORMAT say: a role, and the processes that it starts."""
    log_format = os.environ.get("ELASTIC_CTR_LOG_FORMAT", "text")
    configure(role, os.environ.get("ELASTIC_CTR_LOG_LEVEL", "INFO"), "json" if log_format == "json" else "text")
