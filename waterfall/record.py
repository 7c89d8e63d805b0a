"""What is kept of a request's times: marks, what its replicas told, and how it ended. No text of its prompt."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from protocol.requests import Timeline


class Chosen(Struct, frozen=True, array_like=True, gc=False):
    """Why an attempt's replica was chosen, as known then: `why` in a word (`gateway.fleet.router`), beside how many
    `others`. `held` of the prompt's `tokens` were believed to be there. Microseconds that were expected: `wait` for
    what was before it, `compute` and `fetch` for its prompt, and `next_us` at the best of the others."""

    why: str
    others: int = 0
    held: int = 0
    tokens: int = 0
    wait: int = 0
    compute: int = 0
    fetch: int = 0
    next_replica: str = ""
    next_us: int = 0


class Attempt(Struct, frozen=True, array_like=True, gc=False):
    """One attempt at a replica; `timeline` is what the replica reported of it, None if it reported nothing.

    `after`: what became of the replica of the attempt before: `lost`, `stopped`, `refused`; "" for the first one.
    `emitted`: output tokens that it went on after. `other_numerics`: the tokens after them may be others than that
    replica would have drawn. `chosen`: why it was this replica; None where that was not kept.
    """

    replica: str
    timeline: Timeline | None = None
    after: str = ""
    emitted: int = 0
    other_numerics: bool = False
    chosen: Chosen | None = None


class Record(Struct, frozen=True, array_like=True, gc=False):
    """One request. Fields are only added at the end, with a default: rows outlive an upgrade.

    `received_at`: microseconds since the Unix epoch. `marks`: (what ended, microseconds since the first mark), flat.
    `status`: `ok`, `cancelled`, `failed`, or `refused` if it never became a task; `code`: the error's, if there was
    one. `topped_up`: microseconds that raising its hold took while it ran. `limits`: from when
    to when, in microseconds as marks, its limits were asked beside the hold; empty if they were not.
    """

    received_at: int
    marks: tuple[int, ...]
    attempts: tuple[Attempt, ...] = ()
    status: str = ""
    code: str = ""
    key: str = ""
    model: str = ""
    lane: str = ""
    surface: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    streamed: bool = False
    topped_up: int = 0
    limits: tuple[int, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def pack(record: Record) -> bytes:
    """The bytes that are stored."""
    return _encoder.encode(record)


def unpack(stored: bytes) -> Record:
    """The inverse of `pack`. Raises msgspec.MsgspecError."""
    return _decoder.decode(stored)
