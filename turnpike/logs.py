"""Structured logs by structlog, those of the standard library's loggers included: JSON, or readable on a terminal."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from typing import Any, Literal, TextIO

import msgspec
import structlog

_PLAIN = frozenset({str, int, float, bool, type(None)})
_encode = msgspec.json.Encoder().encode


class _Lines:
    """A logger of ours, as structlog uses it: it writes lines without the standard library's records, which cost three
    times as much. What cannot be written is lost, as it is by the standard library's handlers."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self.name = name
        self._stream = stream

    def msg(self, line: str) -> None:
        """Write a line."""
        try:
            self._stream.write(f"{line}\n")
            self._stream.flush()
        except (OSError, ValueError):
            return  # a full disk, or a stream that is closed: no request may fail for it

    debug = info = warning = error = critical = msg


def _as_json(line: dict[str, Any], *, default: Callable[[Any], Any]) -> str:
    """A line as JSON in printable ASCII. Most have plain values only, which msgspec writes several times as fast."""
    if _PLAIN.issuperset(map(type, line.values())):
        try:
            text = _encode(line).decode()
        except ValueError:  # a surrogate
            text = "\n"
        if text.isascii() and text.isprintable():
            return text
    return json.dumps(line, default=default, separators=(",", ":"))


def configure(level: str, style: Literal["auto", "json", "console"]) -> None:
    """Send every log line of this process to stderr in one form."""
    readable = style == "console" or (style == "auto" and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor
    if readable:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    else:
        shared.append(structlog.processors.format_exc_info)
        renderer = structlog.processors.JSONRenderer(_as_json)
    stream, least = sys.stderr, logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, renderer],
        logger_factory=lambda name="": _Lines(stream, name),
        wrapper_class=structlog.make_filtering_bound_logger(least),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(least)
    # Alembic logs its plug-ins at INFO at each start.
    logging.getLogger("alembic").setLevel(logging.WARNING)
