"""What the history keeps of a request: lengths, places, keyed hashes and what the cache did; never text."""

from __future__ import annotations

import zlib
from uuid import UUID

import msgspec
from msgspec import Struct

from prompt_cache.promise.lease_decisions import LeasePart

MOST_SPANS = 2000
MOST_PIECES = 256
MOST_TAILS = 4
"""Texts of which a record has how they end."""
MOST_PATH = 200
"""Characters of a JSON path that are kept."""


class SpanNote(Struct, frozen=True, array_like=True):
    """The text at the JSON path `path` is in the tokens [start, end)."""

    path: str
    start: int
    end: int


class PieceNote(Struct, frozen=True, array_like=True):
    """The conversation up to this piece: its key, and the token at which it ends. An empty key was withheld."""

    key: bytes
    end: int
    path: str


class Computed(Struct, frozen=True, array_like=True):
    """The replica computed the prompt tokens [start, end) because of `cause`: a word of the protocol, perhaps of a
    newer one than ours."""

    start: int
    end: int
    cause: str


class Entry(Struct, frozen=True, array_like=True):
    """A promise that a request made or renewed for its first `tokens` tokens: a lease of class `lease`.

    `written_at`, `expires_at`: microseconds since the Unix epoch. `refused`: it was not made, since the project's
    leases were at their limit.
    """

    tokens: int
    lease: str
    written_at: int
    expires_at: int
    refused: bool = False


class RequestRecord(Struct, frozen=True, kw_only=True, array_like=True):
    """One request. Instants are microseconds since the Unix epoch, by the database's clock. Gateways of two versions
    share these records, so that no field is limited to the words of one.

    `at`: when it was admitted. `visible_at`: from when on others could read what it wrote, None if never. `family`:
    names whose prompts its tokens can be compared with. `nodes`: the keys of its prefixes. `partition`, `format`: keys
    of the client's partition and of the output's format. `surface`: the dialect. `automatic`: KV that is there counts
    as read without a lease. `read`, `store`: the plan's. `read_min`: the least tokens that are promised or counted as
    read. `lookups`: the prefixes of which an earlier lease was looked for; None if that is not known. `max_age`: older
    leases were not wanted, in seconds. `entries`: the leases written or renewed. `parts`: how leases bill the prompt.
    `billed_read`: tokens billed as read. `found`: tokens whose KV was in memory. `misses`: what the replica said.
    `tails`: the keys of how its first texts end, each for itself; a text that begins otherwise has the same. `lost`:
    what the replica computed although it lay in a farther tier.
    """

    id: UUID
    tenant_id: UUID
    project_id: UUID
    at: int
    visible_at: int | None
    model: str
    text_digest: str
    family: bytes
    partition: bytes
    format: bytes
    surface: str
    lane: str
    replica: str
    tokens: int
    nodes: tuple[bytes, ...]
    spans: tuple[SpanNote, ...]
    pieces: tuple[PieceNote, ...]
    root_path: str
    automatic: bool
    read: str
    store: str
    read_min: int
    lookups: tuple[int, ...] | None
    max_age: int | None
    entries: tuple[Entry, ...]
    breakpoints: tuple[tuple[int, str], ...]
    parts: tuple[LeasePart, ...]
    billed_read: int
    found: int
    misses: tuple[Computed, ...]
    price_version: int
    cost_pico: int
    tails: tuple[bytes, ...] = ()
    lost: tuple[Computed, ...] = ()

    @property
    def extent(self) -> int:
        """How many of its first tokens were to be cached."""
        if self.automatic and self.store != "none":
            return self.tokens
        return max((entry.tokens for entry in self.entries), default=0)

    @property
    def opening(self) -> tuple[bytes, bytes]:
        """The keys of its first piece, and of its first two: the same conversation has them under another model or
        partition too. Empty where they were withheld."""
        keys = [piece.key for piece in self.pieces[:2]]
        return keys[0] if keys else b"", keys[-1] if len(keys) == 2 else b""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RequestRecord)


def pack(record: RequestRecord) -> bytes:
    """A record as a row keeps it."""
    return zlib.compress(_encoder.encode(record), 6)


def unpack(data: bytes) -> RequestRecord:
    """The inverse of `pack`. Raises msgspec.MsgspecError or zlib.error for what `pack` did not make."""
    return _decoder.decode(zlib.decompress(data))
