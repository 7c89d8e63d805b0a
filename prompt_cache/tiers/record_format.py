"""A record's bytes: a header of 512 bytes, then the payload in sealed chunks. docs/cache-on-disk.md draws it.

The header is readable without a key, and is the associated data of every chunk. Its checksum only tells damage from a
record that is whole but not the one that was asked for: what protects it is the seal.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, TypeAlias

from prompt_cache.kv.block_keys import KEY_BYTES

MAGIC, VERSION = b"TPKVREC\n", 1
HEADER_BYTES = 512
CHUNK_BYTES = 256 * 1024
TAG_BYTES = 16
NAME_BYTES = 15
"""A record's name: a hash. With its header, a `bytes` of this length takes 48 bytes of memory, one more would take
64."""
SALT_BYTES = 32
MOST_SCOPE_BYTES = 64
DISK_BLOCK = 4096

RecordFault: TypeAlias = Literal[
    "absent", "lost", "truncated", "damaged", "version", "other_identity", "misplaced", "expired", "purged", "unsealed",
    "late", "io_error", "not_a_file",
]  # fmt: skip
"""Why a record was not read. `lost`: it was there, and its file is gone. `damaged`: the header's checksum does not fit.
`misplaced`: a whole header of another scope, block, layer group or shard. `unsealed`: the payload or the header are not
what was sealed. `late`: the deadline passed. `not_a_file`: a link, a folder, a pipe lies in its place."""
DAMAGE: Collection[str] = frozenset(
    ("truncated", "damaged", "version", "other_identity", "misplaced", "unsealed", "io_error", "not_a_file")
)
"""Those of a record that is there and cannot be used. By the others it was deleted, or could not be waited for."""

_LAYOUT = struct.Struct(f">8sHHI32s32s32sHHHB{MOST_SCOPE_BYTES}s{KEY_BYTES}sIIQQQQQ{SALT_BYTES}sQ")
_PARENT = struct.Struct(f">{NAME_BYTES}s")
"""In what was padding: records that were written before have zeros there, and no parent."""
_CHECKSUM = struct.Struct(">I")
_MOST_POSITION = 1 << 27
"""More than any prompt has: places in the index are positions times groups, in 32 bits."""
_PADDING = bytes(HEADER_BYTES - _LAYOUT.size - _PARENT.size - _CHECKSUM.size)


class BadRecord(Exception):
    """A record cannot be used. `cause` says why."""

    def __init__(self, cause: RecordFault) -> None:
        super().__init__(cause)
        self.cause = cause


@dataclass(frozen=True, slots=True)
class Header:
    """What a record says of itself. Times are in microseconds since the Unix epoch.

    `model`, `numerics` and `layout` are the identity's digests. `sequence` orders it against tombstones. `payload` is
    the length of what was sealed, `salt` names the key of the replica's start, `counter` is the record's number in it.
    `parent` is the name of the record before it in its prompt; empty for the first, and where that is not known.
    """

    model: bytes
    numerics: bytes
    layout: bytes
    group: int
    shard: int
    shards: int
    scope: str
    key: bytes
    tokens: int
    position: int
    created: int
    expires: int
    lease_until: int
    sequence: int
    payload: int
    salt: bytes
    counter: int
    parent: bytes = b""

    def pack(self) -> bytes:
        """The header's 512 bytes. Raises ValueError if a field does not fit."""
        scope = self.scope.encode()
        if len(scope) > MOST_SCOPE_BYTES or len(self.key) != KEY_BYTES:
            raise ValueError(f"a scope of {len(scope)} bytes, a key of {len(self.key)}")
        fields = (
            *(MAGIC, VERSION, HEADER_BYTES, CHUNK_BYTES, self.model, self.numerics, self.layout),
            *(self.group, self.shard, self.shards, len(scope), scope, self.key, self.tokens, self.position),
            *(self.created, self.expires, self.lease_until, self.sequence, self.payload, self.salt, self.counter),
        )
        try:
            start = _LAYOUT.pack(*fields) + _PARENT.pack(self.parent) + _PADDING
        except struct.error as error:
            raise ValueError(str(error)) from error
        return start + _CHECKSUM.pack(zlib.crc32(start))

    @property
    def record_bytes(self) -> int:
        """The length of the record's file."""
        return record_bytes(self.payload)


def unpack(raw: bytes) -> Header:
    """The header in these 512 bytes. Raises BadRecord: truncated, damaged, version."""
    if len(raw) < HEADER_BYTES:
        raise BadRecord("truncated")
    start, (checksum,) = raw[: -_CHECKSUM.size], _CHECKSUM.unpack(raw[-_CHECKSUM.size :])
    if zlib.crc32(start) != checksum:
        raise BadRecord("damaged")
    magic, version, header, chunk, *fields = _LAYOUT.unpack_from(start)
    if (magic, version, header, chunk) != (MAGIC, VERSION, HEADER_BYTES, CHUNK_BYTES):
        raise BadRecord("version")
    model, numerics, layout, group, shard, shards, length, scope, key, *rest = fields
    try:
        name = scope[:length].decode()
    except UnicodeDecodeError as error:
        raise BadRecord("damaged") from error
    (parent,) = _PARENT.unpack_from(start, _LAYOUT.size)
    if rest[1] > _MOST_POSITION:
        raise BadRecord("damaged")
    names = ("tokens", "position", "created", "expires", "lease_until", "sequence", "payload", "salt", "counter")
    return Header(
        model=model,
        numerics=numerics,
        layout=layout,
        group=group,
        shard=shard,
        shards=shards,
        scope=name,
        key=key,
        parent=parent if any(parent) else b"",
        **dict(zip(names, rest, strict=True)),
    )


def chunks(payload: int) -> int:
    """How many chunks a payload of so many bytes is sealed in."""
    return max(1, -(-payload // CHUNK_BYTES))


def record_bytes(payload: int) -> int:
    """The length of the file of a record with a payload of so many bytes."""
    return HEADER_BYTES + payload + TAG_BYTES * chunks(payload)


def disk_bytes(length: int) -> int:
    """What a file of this length takes of the disk."""
    return -(-length // DISK_BLOCK) * DISK_BLOCK
