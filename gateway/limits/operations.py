"""What is asked of the buckets that keep rate limits, and what they answer: msgpack arrays, as the Lua script has them.

Levels are integers of micro-units (a millionth of a request or token), times are microseconds.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

MICRO = 1_000_000
UNLIMITED = -1
LIMITED = ("requests", "input_tokens", "output_tokens", "concurrent")
"""What is limited, in the order of the fields of `Bounds`."""
REQUESTS, INPUT, OUTPUT, CONCURRENT = range(4)
PLACE_WAIT_US = MICRO
"""What a request without a place is told to wait: nobody knows when a running one ends."""


class Bounds(Struct, frozen=True, array_like=True):
    """The limits of one subject, a project or a key; UNLIMITED where there is none. The first three are per minute,
    and a bucket holds a minute's worth."""

    subject: str
    requests: int = UNLIMITED
    input_tokens: int = UNLIMITED
    output_tokens: int = UNLIMITED
    concurrent: int = UNLIMITED

    @property
    def limits(self) -> tuple[int, int, int, int]:
        """The limits, in the order of LIMITED."""
        return self.requests, self.input_tokens, self.output_tokens, self.concurrent

    def per_minute(self, meter: int) -> int:
        """The limit of one of the first three of LIMITED."""
        return (self.requests, self.input_tokens, self.output_tokens)[meter]


Subjects: TypeAlias = tuple[Bounds, ...]


class Reserve(Struct, frozen=True, array_like=True, tag="reserve"):
    """Take a request, so many tokens and a place from every subject, or nothing from any. More tokens than a bucket
    holds are taken as a full bucket."""

    request: str
    input_tokens: int
    output_tokens: int
    subjects: Subjects


class SettleInput(Struct, frozen=True, array_like=True, tag="began"):
    """The request has so many uncached input tokens: give back or take the difference. Only the first counts."""

    request: str
    input_tokens: int
    subjects: Subjects


class Settle(Struct, frozen=True, array_like=True, tag="ended"):
    """The request has ended with so many tokens: settle what is not settled, and free its places. Only the first
    counts."""

    request: str
    input_tokens: int
    output_tokens: int
    subjects: Subjects


class Renew(Struct, frozen=True, array_like=True, tag="renew"):
    """The request still runs: keep its places, or take them again where they were lost."""

    request: str
    subjects: Subjects


class Charge(Struct, frozen=True, array_like=True, tag="charge"):
    """Take so many micro-units that were used elsewhere, but let no level fall below zero for it."""

    levels: tuple[int, int, int]
    subjects: Subjects


Operation: TypeAlias = Reserve | SettleInput | Settle | Renew | Charge


class Levels(Struct, frozen=True, array_like=True):
    """What a subject has left after the operation: micro-units, and places. 0 where it has no limit."""

    requests: int
    input_tokens: int
    output_tokens: int
    concurrent: int


class Verdict(Struct, frozen=True, array_like=True):
    """The answer to `Reserve`. When refused, `subject` and `meter` say which limit is to be waited for the longest, and
    `wait` for how long."""

    allowed: bool
    wait: int
    subject: int
    meter: int
    levels: tuple[Levels, ...]


def time_until(missing: int, per_minute: int) -> int:
    """Microseconds in which a bucket gains so many micro-units, rounded up."""
    if missing <= 0:
        return 0
    whole, part = divmod(missing, per_minute)
    return whole * 60 + -(-part * 60 // per_minute)
