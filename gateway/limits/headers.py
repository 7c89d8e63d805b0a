"""The headers that say what a request's limits have left, as OpenAI's and Anthropic's clients read them.

Where project and key both have a limit, the one with less left is told. `reset` is when the bucket is full again.
Sources: https://platform.openai.com/docs/guides/rate-limits and https://docs.anthropic.com/en/api/rate-limits.
"""

from __future__ import annotations

from datetime import UTC, datetime

from msgspec import Struct

from gateway.generation_request import Dialect
from gateway.limits.limiter import Standing
from gateway.limits.operations import INPUT, MICRO, OUTPUT, REQUESTS, UNLIMITED, time_until

_HOUR_S, _MINUTE_S = 3600, 60
_PARTS = ("limit", "remaining", "reset")
_NAMES = ((REQUESTS, "requests"), (INPUT, "input-tokens"), (OUTPUT, "output-tokens"))

Pairs = list[tuple[bytes, bytes]]


class Left(Struct, frozen=True):
    """What is left of a limit, and the microseconds until all of it is."""

    limit: int
    remaining: int
    reset: int


def limit_headers(standing: Standing, dialect: Dialect, *, now: float) -> Pairs:
    """The headers, as the dialect names them. `now`: seconds since the Unix epoch."""
    found = {name: left for meter, name in _NAMES if (left := _left(standing, meter)) is not None}
    tokens = min(
        (left for name, left in found.items() if name != "requests"),
        key=lambda left: left.remaining / left.limit,
        default=None,
    )
    if tokens is not None:
        found["tokens"] = tokens
    headers: Pairs = []
    for name, left in found.items():
        if dialect == "anthropic":
            prefix = f"anthropic-ratelimit-{name}-"
            names, reset = [prefix + part for part in _PARTS], rfc3339(now, left.reset)
        else:
            names, reset = [f"x-ratelimit-{part}-{name}" for part in _PARTS], go_duration(left.reset)
        values = (str(left.limit), str(left.remaining), reset)
        headers += [(key.encode(), value.encode()) for key, value in zip(names, values, strict=True)]
    return headers + _places(standing)


def _places(standing: Standing) -> Pairs:
    """Neither vendor has headers for requests at once; these are ours."""
    found = [
        (levels.concurrent, bounds.concurrent)
        for bounds, levels in zip(standing.subjects, standing.levels, strict=True)
        if bounds.concurrent != UNLIMITED
    ]
    if not found:
        return []
    remaining, limit = min(found)
    return [
        (b"x-ratelimit-limit-concurrent", str(limit).encode()),
        (b"x-ratelimit-remaining-concurrent", str(remaining).encode()),
    ]


def _left(standing: Standing, meter: int) -> Left | None:
    tightest: Left | None = None
    for bounds, levels in zip(standing.subjects, standing.levels, strict=True):
        limit = bounds.per_minute(meter)
        if limit == UNLIMITED:
            continue
        level = (levels.requests, levels.input_tokens, levels.output_tokens)[meter]
        left = Left(limit, max(0, level // MICRO), time_until(limit * MICRO - level, limit))
        if tightest is None or left.remaining < tightest.remaining:
            tightest = left
    return tightest


def go_duration(microseconds: int) -> str:
    """A duration as Go writes it, to milliseconds, rounded up: 6m0s, 1.25s, 20ms."""
    milliseconds = -(-microseconds // 1000)
    if milliseconds < 1000:
        return f"{milliseconds}ms"
    seconds, rest = divmod(milliseconds, 1000)
    hours, seconds = divmod(seconds, _HOUR_S)
    minutes, seconds = divmod(seconds, _MINUTE_S)
    fraction = f".{rest:03d}".rstrip("0").rstrip(".")
    text = f"{seconds}{fraction}s"
    if hours:
        return f"{hours}h{minutes}m{text}"
    return f"{minutes}m{text}" if minutes else text


def rfc3339(now: float, microseconds: int) -> str:
    """The instant in so many microseconds, in whole seconds, rounded up."""
    at = -(-int(now * MICRO + microseconds) // MICRO)
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"
