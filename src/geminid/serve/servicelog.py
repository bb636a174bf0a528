"""The service's own log: one JSON object a line, in files that rotate, which requests from outside cannot fill."""

from __future__ import annotations

import json
import logging
import logging.handlers
import os
import time
from pathlib import Path

#: The log's name in the home folder.
LOG = "service.log"

#: Size in bytes at which a new log is begun.
LARGEST_LOG_BYTES = 16 << 20

#: Older logs that are kept.
OLD_LOGS = 3

#: Loggers whose lines requests from outside can cause.
FROM_OUTSIDE = ("uvicorn", "asyncio", "geminid.connections")

#: Equal lines from outside that are written a minute.
ALIKE_PER_MINUTE = 10


class JsonLines(logging.Formatter):
    """One JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """A record as one line."""
        document = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created)),
            "level": record.levelname.lower(),
            "from": record.name,
            "text": record.getMessage(),
        }
        document |= getattr(record, "fields", {})
        if record.exc_info:
            document["trace"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


class LineRateLimit(logging.Filter):
    """Passes a limited number of equal lines a minute, of those that requests from outside cause.

    The first line after the minute says how many were left out.
    """

    def __init__(self, per_minute: int = ALIKE_PER_MINUTE) -> None:
        super().__init__()
        self._per_minute = per_minute
        self._counts: dict[tuple[str, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line is written."""
        if record.name.split(".")[0] not in FROM_OUTSIDE and record.name not in FROM_OUTSIDE:
            return True
        alike = (record.name, str(record.msg)[:200])
        since_s, count = self._counts.get(alike, (record.created, 0))
        if record.created - since_s >= 60.0:
            if count > self._per_minute:
                left_out = f"{record.getMessage()} ({count - self._per_minute} lines like this one were left out)"
                record.msg, record.args = left_out, None
            since_s, count = record.created, 0
        if len(self._counts) > 1000:  # lines that differ from each other
            self._counts.clear()
        self._counts[alike] = (since_s, count + 1)
        return count < self._per_minute


def log_to(path: Path) -> None:
    """Write this process's log to a file that only its owner may read."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=LARGEST_LOG_BYTES, backupCount=OLD_LOGS)
    handler.setFormatter(JsonLines())
    handler.addFilter(LineRateLimit())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    for client in ("httpx", "httpcore"):  # they log whole URLs, which are secrets of hooks
        logging.getLogger(client).setLevel(logging.WARNING)
