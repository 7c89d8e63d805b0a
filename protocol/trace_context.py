"""The trace that a request belongs to, as W3C's Trace Context writes it: the header `traceparent`.

https://www.w3.org/TR/trace-context/: `00-` trace id `-` parent span's id `-` flags, in lower-case hexadecimal digits.
"""

from __future__ import annotations

import re

from msgspec import Struct

HEADER = "traceparent"
_SHAPE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_SAMPLED = 1


class TraceContext(Struct, frozen=True):
    """A span's place in a trace, ids in hexadecimal digits. `sampled`: whether whoever made it records the trace."""

    trace_id: str
    span_id: str
    sampled: bool

    @property
    def header(self) -> str:
        """The value of `traceparent` for what this span calls."""
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


def parse_traceparent(text: str) -> TraceContext | None:
    """The caller's span; None for a value that is no `traceparent`, which is ignored as the standard demands."""
    match = _SHAPE.fullmatch(text.strip(" \t")) if len(text) <= 512 else None
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _SAMPLED))


def trace_id_of(traceparent: str) -> str | None:
    """The trace's id, for logs; None where there is no trace."""
    return traceparent[3:35] or None
