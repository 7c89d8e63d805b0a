"""The records of the replica's journal file, each in a frame of its own.

A frame is a mark, a length, a CRC-32 and a msgpack record: sound records are found behind damaged ones. A record's
tag in the file never changes: it is the name that its class had first.
"""

from __future__ import annotations

import zlib
from typing import TypeAlias

import msgspec

from protocol.requests import Counts, Done

_MARK = b"\xa9TJ\x01"
_HEADER = len(_MARK) + 8
_MAX_RECORD_BYTES = 1 << 20


class Record(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of the journal's records."""


class Opened(Record, frozen=True):
    """A replica started with this epoch. `journal` is the journal's identity, `since` the epoch in which that began."""

    epoch: int
    journal: str = ""
    since: int = 0


class Begun(Record, frozen=True):
    """A request was scheduled. `handle` stands for it in the records that follow."""

    handle: int
    id: str
    attempt: int
    claim: bytes = b""
    gateway_epoch: str = ""
    """The gateway epoch that sent it; empty in the records of an older version, which did not note it."""


class Progress(Record, frozen=True, tag="Went"):
    """The counts after a step, by handle, of the requests that took part."""

    counts: list[tuple[int, Counts]]


class Delivered(Record, frozen=True, tag="Heard"):
    """So many of a request's tokens have reached the client."""

    handle: int
    delivered: int


class Ended(Record, frozen=True):
    """A request ended; `handle` is 0 if it had not begun."""

    handle: int
    done: Done
    gateway_epoch: str = ""


class Acked(Record, frozen=True):
    """A gateway has made this `Done` durable."""

    sequence: int


class Totals(Record, frozen=True):
    """The sums over all requests that had ended by now, since this journal began."""

    requests: int
    counts: Counts


class Fenced(Record, frozen=True, tag="Refused"):
    """Requests of these gateway epochs are refused from now on."""

    epochs: list[str]


AnyRecord: TypeAlias = Opened | Begun | Progress | Delivered | Ended | Acked | Totals | Fenced
_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)


def frame(record: AnyRecord) -> bytes:
    """The bytes of a record in the file."""
    body = _encoder.encode(record)
    return _MARK + len(body).to_bytes(4, "big") + zlib.crc32(body).to_bytes(4, "big") + body


def _record_at(data: bytes, at: int) -> tuple[AnyRecord, int] | None:
    """The record whose frame begins here, and where the next frame begins; None if there is no sound frame here."""
    head = data[at : at + _HEADER]
    if len(head) < _HEADER or not head.startswith(_MARK):
        return None
    size, checksum = int.from_bytes(head[4:8], "big"), int.from_bytes(head[8:12], "big")
    body = data[at + _HEADER : at + _HEADER + size]
    if size > _MAX_RECORD_BYTES or len(body) < size or zlib.crc32(body) != checksum:
        return None
    try:
        return _decoder.decode(body), at + _HEADER + size
    except msgspec.MsgspecError:
        return None


def read_records(data: bytes) -> tuple[list[AnyRecord], int, int]:
    """The sound records, how many damaged stretches were between them, and how many bytes of a torn record follow."""
    records: list[AnyRecord] = []
    at = damaged = 0
    while at < len(data):
        record_and_end = _record_at(data, at)
        if record_and_end is None:
            start = at
            at = data.find(_MARK, start + 1)
            while at >= 0 and _record_at(data, at) is None:
                at = data.find(_MARK, at + 1)
            if at < 0:
                return records, damaged, len(data) - start
            damaged += 1
            continue
        record, at = record_and_end
        records.append(record)
    return records, damaged, 0
